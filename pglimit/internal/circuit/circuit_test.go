package circuit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	late  = time.Second
	pause = 200 * time.Millisecond
)

var (
	errGone  = fmt.Errorf("%w: connection refused", rate.ErrUnavailable)
	errLost  = fmt.Errorf("%w: connection lost", rate.ErrUnavailable)
	errOther = errors.New("division by zero")
)

// ears hear of changes.
type ears struct {
	mu   sync.Mutex
	open []bool
	why  []error
}

func (e *ears) hear(open bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open, e.why = append(e.open, open), append(e.why, why)
}

func deaf(bool, error) {}

// life is the sign of life that a Breaker gets, which a test changes.
type life struct {
	mu   sync.Mutex
	sign func(context.Context) error
}

func (l *life) ask(ctx context.Context) error {
	l.mu.Lock()
	sign := l.sign
	l.mu.Unlock()
	return sign(ctx)
}

// admit a caller, who gets this sign of life if it asks.
func (l *life) admit(ctx context.Context, b *circuit.Breaker, sign func(context.Context) error) error {
	l.mu.Lock()
	l.sign = sign
	l.mu.Unlock()
	return b.Admit(ctx)
}

// returns is a call that ends like this.
func returns(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// silent is a call that has no answer until its context ends.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("called, though it is open")
		return nil
	}
}

// open is a Breaker that has just opened.
func open(t *testing.T, late time.Duration, hear func(bool, error)) (*circuit.Breaker, *life) {
	t.Helper()
	l := &life{sign: returns(nil)}
	b := circuit.New(late, l.ask, hear)
	for range 2 {
		_ = b.Call(t.Context(), returns(errGone))
	}
	if !b.Open() {
		t.Fatal("two outages did not open it")
	}
	return b, l
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// How calls end that follow one another: x an outage, d one that the pool notices, which has a
// time limit of its own; c the caller cancels, t its deadline passes; . an answer, and errors
// that are answers: n nothing taken, m not migrated, l locked, o any other.
func TestOutagesInARowOpenIt(t *testing.T) {
	t.Parallel()
	for calls, opens := range map[string]bool{
		"": false, "x": false, "xx": true, "d": false, "dd": true, "xd": true, "dx": true,
		"x.x": false, "x.x.x.x": false, "x.xx": true, "xnx": false, "xmx": false, "xlx": false, "xox": false, "xoxx": true,
		"nnn": false, "mmm": false, "lll": false, "ooo": false, "...": false,
		"ccc": false, "ttt": false, "xcx": true, "xtx": true, "xct": false, "xc.x": false,
	} {
		synctest.Test(t, func(t *testing.T) {
			b := circuit.New(late, returns(nil), deaf)
			for i, letter := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), late/2)
				err := map[rune]error{
					'x': errGone, 'd': fmt.Errorf("connecting: %w", context.DeadlineExceeded), '.': nil,
					'n': rate.ErrNothingTaken, 'm': rate.ErrNotMigrated, 'l': rate.ErrLocked, 'o': errOther,
					'c': context.Canceled, 't': context.DeadlineExceeded,
				}[letter]
				got := b.Call(ctx, func(ctx context.Context) error {
					switch letter {
					case 'c':
						cancel()
						return silent(ctx)
					case 't':
						return silent(ctx)
					}
					return err
				})
				if got != err { //nolint:errorlint // as it is, not wrapped
					t.Errorf("%q: call %d: %v, want %v", calls, i, got, err)
				}
				cancel()
			}
			if b.Open() != opens {
				t.Errorf("%q: open %t", calls, b.Open())
			}
		})
	}
}

// pgError is an error of Postgres's, as strategies return it.
func pgError(code string) error {
	return fmt.Errorf("%w: %w", rate.ErrUnavailable, &pgconn.PgError{Code: code})
}

// Postgres may answer that it does not want to, which is an answer all the same: the next
// request may be another. While it starts or stops, or has no place for a connection, it is not.
func TestWhichAnswersAreOutages(t *testing.T) {
	t.Parallel()
	for code, outage := range map[string]bool{
		"57P01": true, "57P03": true, "08006": true, "53300": true,
		"25006": false, "53100": false, "58030": false, "28P01": false, "40001": false,
	} {
		b := circuit.New(late, returns(nil), deaf)
		for range 2 {
			_ = b.Call(t.Context(), returns(pgError(code)))
		}
		if b.Open() != outage {
			t.Errorf("%s: open %t", code, b.Open())
		}
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, late, deaf)
			later(pause + 1)
			if err := l.admit(t.Context(), b, returns(pgError(code))); (err != nil) != outage || b.Open() != outage {
				t.Errorf("%s, as a sign of life: %v, open %t", code, err, b.Open())
			}
			// A doubt asks whether the server is alive, and not whether it has a place for us.
			b = circuit.New(late, returns(pgError(code)), deaf)
			ctx, leave := context.WithCancel(t.Context())
			go func() { _ = b.Call(ctx, silent) }()
			later(2 * late)
			if dead := outage && code != "53300"; b.Open() != dead {
				t.Errorf("%s, in doubt: open %t", code, b.Open())
			}
			leave()
			b.Close()
		})
	}
}

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
		name  string
		sign  func(context.Context) error
		other time.Duration // a second call is answered then
		opens time.Duration // zero: never
	}{
		{"no sign of life", silent, 0, late},
		{"refused", returns(errGone), 0, late / 2},
		{"a sign of life", returns(nil), 0, 0},
		{"a late sign of life", func(context.Context) error { time.Sleep(late / 3); return nil }, 0, 0},
		{"answered before", silent, late / 4, late + late/4},
		{"answered while asking", silent, late * 3 / 4, 2 * late},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			b := circuit.New(late, test.sign, deaf)
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

func TestWhatIsUnderWayIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &life{sign: returns(nil)}
		b := circuit.New(late, l.ask, deaf)
		errs := make([]error, 6)
		began := time.Now()
		var work sync.WaitGroup
		for i := range errs {
			work.Go(func() {
				errs[i] = b.Call(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					if i == 5 {
						return nil // it was answered at the last moment
					}
					return ctx.Err()
				})
			})
		}
		later(late / 2)
		for range 2 {
			if err := b.Call(t.Context(), returns(errGone)); err != errGone && !errors.Is(err, errGone) { //nolint:errorlint // the last opens it
				t.Error(err)
			}
		}
		work.Wait()
		if took := time.Since(began); took != late/2 {
			t.Errorf("given up after %v", took)
		}
		for i, err := range errs {
			if i == 5 {
				if err != nil {
					t.Errorf("who has an answer: %v", err)
				}
				continue
			}
			if !errors.Is(err, rate.ErrUnavailable) || errors.Is(err, circuit.ErrOpen) || errors.Is(err, context.Canceled) {
				t.Errorf("call %d: %v", i, err)
			}
		}
		// What was given up says nothing: it stays open for as long as ever, and closes as ever.
		later(pause + 1)
		if err := l.admit(t.Context(), b, returns(nil)); err != nil || b.Open() {
			t.Errorf("%v, open %t", err, b.Open())
		}
		if err := b.Call(t.Context(), func(ctx context.Context) error { return ctx.Err() }); err != nil {
			t.Errorf("a call after that: %v", err)
		}
	})
}

func TestWhileItIsOpenNobodyIsLetThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := open(t, late, deaf)
		for range 10 {
			began := time.Now()
			for _, err := range []error{l.admit(t.Context(), b, never(t)), b.Call(t.Context(), never(t))} {
				if !errors.Is(err, circuit.ErrOpen) || !errors.Is(err, rate.ErrUnavailable) {
					t.Error(err)
				}
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("after %v", took)
			}
			time.Sleep(pause / 10)
		}
	})
}

// A call that did not ask for a sign of life is none: it would be given up as soon as it began.
func TestAfterThePauseACallDoesNotGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, l := open(t, late, deaf)
		later(pause + 1)
		if err := b.Call(t.Context(), never(t)); !errors.Is(err, circuit.ErrOpen) {
			t.Error(err)
		}
		if err := l.admit(t.Context(), b, returns(nil)); err != nil || b.Open() {
			t.Errorf("%v, open %t", err, b.Open())
		}
	})
}

func TestAfterThePauseOneAsksForASignOfLife(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		late, pause time.Duration
	}{{late, pause}, {50 * time.Millisecond, 50 * time.Millisecond}} {
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, test.late, deaf)
			ping := make(chan error)
			for _, answer := range []error{errGone, errLost, nil} {
				later(test.pause)
				if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, circuit.ErrOpen) {
					t.Errorf("%+v: at the end of the pause: %v", test, err)
				}
				later(1)
				var first error
				go func() { first = l.admit(t.Context(), b, func(context.Context) error { return <-ping }) }()
				synctest.Wait()
				for range 3 {
					for _, err := range []error{l.admit(t.Context(), b, never(t)), b.Call(t.Context(), never(t))} {
						if !errors.Is(err, circuit.ErrOpen) {
							t.Errorf("%+v: meanwhile: %v", test, err)
						}
					}
					later(test.pause / 4)
				}
				ping <- answer
				synctest.Wait()
				if first != answer || b.Open() != (answer != nil) { //nolint:errorlint // as it is, not wrapped
					t.Errorf("%+v: who asked has %v, open %t", test, first, b.Open())
				}
			}
			if err := l.admit(t.Context(), b, never(t)); err != nil {
				t.Errorf("%+v: after the sign of life: %v", test, err)
			}
			if err := b.Call(t.Context(), returns(nil)); err != nil {
				t.Errorf("%+v: after the sign of life: %v", test, err)
			}
		})
	}
}

// A caller may have less time than a sign of life takes, or leave: the question goes on, one at a
// time, and its answer counts.
func TestASignOfLifeForWhichNobodyWaits(t *testing.T) {
	t.Parallel()
	for _, cancels := range []bool{true, false} {
		for _, alive := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b, l := open(t, late, deaf)
				later(pause + 1)
				ctx, leave := context.WithTimeout(t.Context(), late/4)
				defer leave()
				if cancels {
					time.AfterFunc(late/10, leave)
				}
				err := l.admit(ctx, b, func(ctx context.Context) error {
					later(late / 3)
					if !alive {
						return errGone
					}
					return ctx.Err()
				})
				if !errors.Is(err, ctx.Err()) || errors.Is(err, rate.ErrUnavailable) == cancels {
					t.Errorf("cancels %t: %v", cancels, err)
				}
				if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, circuit.ErrOpen) {
					t.Errorf("cancels %t: while the question is under way, the next has %v", cancels, err)
				}
				later(late / 3)
				if b.Open() == alive {
					t.Errorf("cancels %t: after the answer alive %t it is open %t", cancels, alive, b.Open())
				}
			})
		}
	}
}

func TestNoBreakerIsAlwaysClosed(t *testing.T) {
	t.Parallel()
	var none *circuit.Breaker
	ctx := t.Context()
	for range 5 {
		if err := none.Call(ctx, func(got context.Context) error {
			if got != ctx {
				t.Error("another context")
			}
			return errGone
		}); err != errGone { //nolint:errorlint // as it is, not wrapped
			t.Error(err)
		}
	}
	if err := none.Admit(ctx); err != nil || none.Open() {
		t.Errorf("%v, open %t", err, none.Open())
	}
}

// Of each change once, with the failure before it, and free to ask the Breaker itself.
func TestWhoHearsOfChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e ears
		var b *circuit.Breaker
		l := &life{sign: returns(nil)}
		b = circuit.New(late, l.ask, func(open bool, why error) {
			e.hear(open, why)
			if b.Open() != open {
				t.Errorf("told %t, open %t", open, b.Open())
			}
			if err := l.admit(t.Context(), b, never(t)); (err != nil) != open {
				t.Errorf("told %t: %v", open, err)
			}
			if err := b.Call(t.Context(), returns(nil)); (err != nil) != open {
				t.Errorf("told %t: %v", open, err)
			}
		})
		errFirst, errSecond, errThird := fmt.Errorf("%w: 1", errGone), fmt.Errorf("%w: 2", errGone), fmt.Errorf("%w: 3", errGone)
		var work sync.WaitGroup
		for range 10 {
			work.Go(func() { _ = b.Call(t.Context(), silent) }) // which end when it opens
		}
		synctest.Wait()
		for _, err := range []error{nil, errFirst, errOther, errFirst, errSecond, errThird} {
			_ = b.Call(t.Context(), returns(err))
		}
		work.Wait()
		for _, err := range []error{errThird, errThird, nil, nil} {
			later(pause + 1)
			_ = l.admit(t.Context(), b, returns(err))
		}
		if want := []bool{true, false}; !slices.Equal(e.open, want) {
			t.Errorf("told %v", e.open)
		}
		if want := []error{errSecond, errThird}; !slices.Equal(e.why, want) {
			t.Errorf("because of %v, want %v", e.why, want)
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

// Many at once, while the server comes and goes: it is let alone while it is away, never asked
// for a sign of life by two at a time, and found again when it is back.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e ears
		l := &life{sign: silent}
		b := circuit.New(late, l.ask, e.hear)
		var away atomic.Bool
		var pinging, calls, lost atomic.Int64
		answer := func(ctx context.Context) error {
			time.Sleep(time.Duration(1+rand.IntN(5)) * time.Millisecond)
			if away.Load() {
				return errGone
			}
			return ctx.Err()
		}
		ping := func(ctx context.Context) error {
			if pinging.Add(1) > 1 {
				t.Error("two ask for a sign of life")
			}
			defer pinging.Add(-1)
			return answer(ctx)
		}
		for range 10 { // outages and recoveries
			end := time.Now().Add(3 * pause)
			var work sync.WaitGroup
			for range 30 {
				work.Go(func() {
					for time.Now().Before(end) {
						err := l.admit(t.Context(), b, ping)
						if err == nil {
							calls.Add(1)
							err = b.Call(t.Context(), answer)
						}
						if err != nil {
							lost.Add(1)
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			work.Wait()
			if b.Open() != away.Load() {
				t.Errorf("away %t, open %t", away.Load(), b.Open())
			}
			away.Store(!away.Load())
		}
		if n := len(e.open); n != 9 {
			t.Errorf("told of %d changes", n)
		}
		for i, open := range e.open {
			if open != (i%2 == 0) {
				t.Errorf("told %v", e.open)
				break
			}
		}
		if calls.Load() < 5000 || lost.Load() < 5000 {
			t.Errorf("%d calls, %d lost", calls.Load(), lost.Load())
		}
	})
}

// Close ends calls, and who asks for a sign of life. If that came all the same, it is too late.
func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := circuit.New(late, returns(nil), deaf)
		heard := make(chan error, 1)
		go func() { heard <- b.Call(t.Context(), silent) }()
		synctest.Wait()
		b.Close()
		if err := <-heard; !errors.Is(err, rate.ErrClosed) || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b, l := open(t, late, deaf)
			later(pause + 1)
			heard := make(chan error, 1)
			began := time.Now()
			go func() {
				heard <- l.admit(t.Context(), b, func(ctx context.Context) error {
					<-ctx.Done()
					if comes {
						return nil
					}
					return ctx.Err()
				})
			}()
			later(1)
			b.Close()
			if err := <-heard; !errors.Is(err, rate.ErrClosed) || time.Since(began) != 1 {
				t.Errorf("the sign comes %t: %v after %v", comes, err, time.Since(began))
			}
			later(pause + 1)
			if err := l.admit(t.Context(), b, never(t)); !errors.Is(err, rate.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// overdue is a context whose deadline has passed, and that has not ended yet: its timer is late.
type overdue struct{ context.Context }

func (overdue) Deadline() (time.Time, bool) { return time.Now(), true }

// Callers whose own time ends while they dial say nothing about the server.
func TestADialThatRanOutOfItsCallersTimeIsNoOutage(t *testing.T) {
	t.Parallel()
	b := circuit.New(late, returns(nil), deaf)
	defer b.Close()
	dial := fmt.Errorf("%w: dial tcp: %w", rate.ErrUnavailable, os.ErrDeadlineExceeded)
	for range 5 {
		if err := b.Call(overdue{t.Context()}, func(context.Context) error { return dial }); !errors.Is(err, dial) {
			t.Error(err)
		}
	}
	if b.Open() {
		t.Error("it is open")
	}
}
