package circuit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

// Calls that end before the silence has lasted too long add up, until one is answered.
func TestSilenceOfManyShortCalls(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := circuit.New(late, silent, deaf)
			for i := range 100 {
				call := silent
				if answered && i%20 == 0 {
					call = returns(nil)
				}
				ctx, cancel := context.WithTimeout(t.Context(), late/100)
				_ = b.Call(ctx, call)
				cancel()
				time.Sleep(late / 100)
			}
			if b.Open() == answered {
				t.Errorf("answered now and then %t: open %t", answered, b.Open())
			}
			b.Close()
		})
	}
}

// Who leaves at once, on a server that is alive, costs it a question now and then, and when
// nobody calls none.
func TestNobodyIsWatchedWhenNobodyCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		b := circuit.New(late, func(context.Context) error { asked.Add(1); return nil }, deaf)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), late/10)
			_ = b.Call(ctx, silent)
			cancel()
			time.Sleep(time.Hour)
		}
		if n := asked.Load(); n != 3 || b.Open() {
			t.Errorf("asked %d times, open %t", n, b.Open())
		}
		for range 3 {
			_ = b.Call(t.Context(), returns(nil))
			time.Sleep(time.Hour)
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("asked %d times, though all were answered", n)
		}
		b.Close()
	})
}

// A call has no answer, nor has anybody else, nor is there a sign of life: that is silence.
func TestSilenceOpensIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		before []error // calls end so, 2/5 of late before
		sign   func(context.Context) error
		other  time.Duration // a second call is answered then
		opens  time.Duration // zero: never
	}{
		{"no sign of life", nil, silent, 0, late},
		{"refused", nil, returns(errGone), 0, late / 2},
		{"a sign of life", nil, returns(nil), 0, 0},
		{"a late sign of life", nil, func(context.Context) error { time.Sleep(late / 3); return nil }, 0, 0},
		{"answered before", nil, silent, late / 4, late + late/4},
		{"answered while asking", nil, silent, late * 3 / 4, 2 * late},
		{"after an answer and idle time", []error{nil}, silent, 0, late},
		{"after a failure, which was a doubt", []error{errGone}, silent, 0, late / 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			b := circuit.New(late, test.sign, deaf)
			for _, err := range test.before {
				_ = b.Call(ctx, returns(err))
			}
			later(late * 2 / 5)
			var work sync.WaitGroup
			began := time.Now()
			work.Go(func() { _ = b.Call(ctx, silent) })
			if test.other > 0 {
				work.Go(func() {
					_ = b.Call(ctx, func(context.Context) error { time.Sleep(test.other); return nil })
				})
			}
			for time.Since(began) < 5*late && !b.Open() {
				later(late / 100)
			}
			if took := time.Since(began); b.Open() != (test.opens > 0) || b.Open() && (took-test.opens).Abs() > late/50 {
				t.Errorf("%s: open %t after %v, want %v", test.name, b.Open(), took, test.opens)
			}
			leave()
			work.Wait()
			b.Close()
		})
	}
}

// The sign of life that closes it is an answer: a silence before it does not count, not even if a
// call of that time has not noticed yet that it was given up.
func TestAfterASignOfLifeSilenceBeginsAnew(t *testing.T) {
	t.Parallel()
	for _, lingers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &life{sign: returns(errGone)}
			b := circuit.New(late, l.ask, deaf)
			if lingers {
				go func() { _ = b.Call(t.Context(), func(context.Context) error { time.Sleep(2 * late); return nil }) }()
			}
			synctest.Wait()
			_ = b.Call(t.Context(), returns(errGone))
			later(late * 3 / 10)
			if err := l.admit(t.Context(), b, returns(nil)); err != nil || b.Open() {
				t.Errorf("lingers %t: %v, open %t", lingers, err, b.Open())
			}
			l.sign = silent
			if !lingers {
				later(late / 10) // nobody waits
			}
			go func() { _ = b.Call(t.Context(), silent) }()
			later(late - 1)
			if b.Open() {
				t.Errorf("lingers %t: open already", lingers)
			}
			later(2)
			if !b.Open() {
				t.Errorf("lingers %t: not open", lingers)
			}
			b.Close()
			later(late) // until the call that lingers has ended
		})
	}
}

// While a call is silent the server is asked again and again, but by one at a time, and not
// when the call has ended.
func TestADoubtIsOneQuestionAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked, asking atomic.Int32
		b := circuit.New(late, func(context.Context) error {
			asked.Add(1)
			if asking.Add(1) > 1 {
				t.Error("two ask at once")
			}
			time.Sleep(late / 4)
			asking.Add(-1)
			return nil
		}, deaf)
		ctx, leave := context.WithCancel(t.Context())
		for range 20 {
			go func() { _ = b.Call(ctx, silent) }()
			time.Sleep(late / 100)
		}
		later(10 * late)
		if n := asked.Load(); n < 10 || n > 41 || b.Open() {
			t.Errorf("asked %d times, open %t", n, b.Open())
		}
		leave()
		later(late)
		before := asked.Load()
		later(10 * late)
		if n := asked.Load(); n != before {
			t.Errorf("asked %d times when nobody called", n-before)
		}
		b.Close()
	})
}

// Close ends the question and waits for it, and then nobody asks any more.
func TestCloseEndsTheDoubts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asking atomic.Int32
		b := circuit.New(late, func(ctx context.Context) error {
			asking.Add(1)
			defer asking.Add(-1)
			<-ctx.Done()
			time.Sleep(time.Millisecond)
			return ctx.Err()
		}, deaf)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go func() { _ = b.Call(ctx, silent) }()
		later(late * 3 / 4)
		if asking.Load() != 1 {
			t.Fatal("nobody asks")
		}
		b.Close()
		if asking.Load() != 0 || b.Open() {
			t.Errorf("%d ask, open %t", asking.Load(), b.Open())
		}
		later(5 * late)
		if asking.Load() != 0 || b.Open() {
			t.Errorf("later: %d ask, open %t", asking.Load(), b.Open())
		}
	})
}

// However little time a call may take, a server is not doubted sooner than it can answer.
func TestNoServerIsDoubtedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := circuit.New(time.Millisecond, silent, deaf)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go func() { _ = b.Call(ctx, silent) }()
		later(249 * time.Millisecond)
		if b.Open() {
			t.Error("open already")
		}
		later(2 * time.Millisecond)
		if !b.Open() {
			t.Error("not open")
		}
	})
}

// Of lateness too, which is noticed while the call goes on.
func TestWhoHearsOfLateness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e ears
		b := circuit.New(late, silent, e.hear)
		for range 3 {
			go func() { _ = b.Call(t.Context(), silent) }()
		}
		later(late)
		if len(e.open) != 1 || !e.open[0] || e.why[0] == nil || e.why[0].Error() != "context deadline exceeded" {
			t.Errorf("told %v, %v", e.open, e.why)
		}
		b.Close()
	})
}
