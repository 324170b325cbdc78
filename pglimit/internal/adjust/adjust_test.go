package adjust_test

import (
	"context"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
)

// next lets the function be asked once more.
func next() { time.Sleep(100 * time.Millisecond); synctest.Wait() }

func TestAFunctionIsAskedTenTimesASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var share, calls atomic.Int64
		share.Store(30)
		s := adjust.New(func() float64 { calls.Add(1); return float64(share.Load()) / 100 }, nil)
		if s.Percent() != 30 || calls.Load() != 1 {
			t.Errorf("%d %% after %d calls: New has not waited for the first answer", s.Percent(), calls.Load())
		}
		for percent := range int64(101) {
			share.Store(percent)
			if next(); s.Percent() != percent {
				t.Errorf("%d %%, want %d", s.Percent(), percent)
			}
		}
		if calls.Load() != 102 {
			t.Errorf("%d calls in 10.1 s", calls.Load())
		}
		s.Close(t.Context())
		time.Sleep(time.Minute)
		if calls.Load() != 102 || s.Percent() != 100 || s.Failures.Load() != 0 {
			t.Errorf("after Close: %d calls, %d %%, %d failures", calls.Load(), s.Percent(), s.Failures.Load())
		}
	})
}

func TestAShareIsRoundedDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for share, want := range map[float64]int64{0: 0, math.Copysign(0, -1): 0, 0.0099: 0, 0.01: 1, 0.29: 29, 0.5799: 57, 0.999: 99, 1: 100} {
			s := adjust.New(func() float64 { return share }, nil)
			if s.Percent() != want {
				t.Errorf("%v is %d %%, want %d", share, s.Percent(), want)
			}
			s.Close(t.Context())
		}
	})
}

// What is no share changes nothing, is counted each time, and told once.
func TestWhatIsNoShareChangesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func() float64{
		"NaN": math.NaN, "-Inf": func() float64 { return math.Inf(-1) }, "+Inf": func() float64 { return math.Inf(1) }, "-0.01": func() float64 { return -0.01 }, "1.01": func() float64 { return 1.01 },
		"panic: boom": func() float64 { panic("boom") }, "Goexit": func() float64 { runtime.Goexit(); return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var faulty atomic.Bool
				var told []string
				s := adjust.New(func() float64 {
					if faulty.Load() {
						return fault()
					}
					return 0.4
				}, func(percent int64, err error) {
					if percent != 40 {
						t.Errorf("told %d %%", percent)
					}
					if err == nil {
						told = append(told, "")
					} else {
						told = append(told, err.Error())
					}
				})
				defer s.Close(t.Context())
				faulty.Store(true)
				for n := range int64(3) {
					if next(); s.Percent() != 40 || s.Failures.Load() != n+1 {
						t.Errorf("%d %%, %d failures", s.Percent(), s.Failures.Load())
					}
				}
				faulty.Store(false)
				if next(); s.Failures.Load() != 3 || len(told) != 2 || !strings.Contains(told[0], name) || told[1] != "" {
					t.Errorf("%d failures, told %q", s.Failures.Load(), told)
				}
			})
		})
	}
}

// A function that hangs is not called a second time, and its answer comes too late. What holds is what held.
func TestAFunctionThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls, running, failures atomic.Int64
		hang := make(chan float64)
		began := time.Now()
		s := adjust.New(func() float64 {
			calls.Add(1)
			if running.Add(1) > 1 {
				t.Error("two calls at once")
			}
			defer running.Add(-1)
			return <-hang
		}, func(int64, error) { failures.Add(1) })
		if waited := time.Since(began); waited != 100*time.Millisecond || s.Percent() != adjust.Whole {
			t.Errorf("after %v: %d %%", waited, s.Percent())
		}
		time.Sleep(time.Hour)
		if s.Percent() != adjust.Whole || calls.Load() != 1 || s.Failures.Load() != 1 || failures.Load() != 1 {
			t.Errorf("%d %%, %d calls, %d failures", s.Percent(), calls.Load(), s.Failures.Load())
		}
		hang <- 0.1
		if next(); s.Percent() != adjust.Whole || calls.Load() != 2 {
			t.Errorf("after an answer that was too late: %d %%, %d calls", s.Percent(), calls.Load())
		}
		hang <- 0.2
		if synctest.Wait(); s.Percent() != 20 || failures.Load() != 2 {
			t.Errorf("after an answer: %d %%, told %d times", s.Percent(), failures.Load())
		}
		next()
		began = time.Now()
		s.Close(context.Background())
		if waited := time.Since(began); waited != time.Second || s.Percent() != 20 {
			t.Errorf("Close took %v; %d %%", waited, s.Percent())
		}
		hang <- 0.3 // or synctest finds the goroutine
	})
}

// Nobody leaves a goroutine behind: synctest would find it.
func TestCloseWaitsForTheLastCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		done := false
		s := adjust.New(func() float64 { time.Sleep(90 * time.Millisecond); done = true; return 0.5 }, nil)
		if s.Close(t.Context()); !done || s.Percent() != 50 {
			t.Error("it has not")
		}
		if s = adjust.New(nil, nil); s.Percent() != adjust.Whole {
			t.Errorf("nobody to ask: %d %%", s.Percent())
		}
		s.Close(t.Context())
	})
}
