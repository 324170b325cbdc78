package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// tick is the time of a token in the tests after golang.org/x/time/rate.
const tick = 100 * ms

// step is one row of a table: what is asked for, and expected. Times are counted in ticks.
type step struct {
	at      int
	reserve int64         // a Reserve of so many
	allow   int64         // or an Allow
	cancel  int           // or a Cancel of the reservation that this row made
	limit   pglimit.Limit // or a SetLimit
	due     float64       // when what is reserved may be used
	refused bool          // the Reserve is an error: more than the burst
	notOK   bool          // or too far ahead
	denied  bool          // the Allow is denied
}

// The tables of golang.org/x/time/rate for Reserve, Cancel and Wait: what they ask, at 10 per second,
// and what is expected here. The differences:
//
//   - More than the burst is a *RequestError, not a reservation that is not OK; and so is less than one
//     token. It can never be granted, so it is a fault of the program, not of the moment.
//   - Cancelled after its time ("too late"): what was not refilled since is given back; there, nothing.
//     Nobody has had those tokens.
//   - Cancelled for the second time: nothing; there, again. Tokens must not come back twice.
//   - How far ahead Reserve goes is bounded by Config.MaxAhead; there, by nothing. Other processes
//     would wait behind it.
//   - After a SetLimit tokens that are owed flow back at the faster of both rates, also those of
//     reservations; there, what was reserved stays in front of what comes. Another process may have the
//     old limit still, and both use one bucket.
//   - There is no rate of Inf or zero: a bucket has a price of a token, in nanoseconds. Jumps of the
//     clock are the database's, see the integration tests.
//   - A Wait whose context has neither a deadline nor MaxWait is an error: it could stand in line for
//     ever, and so could all behind it.
func TestReserveAsInTimeRate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		burst int64
		ahead time.Duration
		steps []step
	}{
		"mixed with Allow": {burst: 2, steps: []step{
			{at: 0, reserve: 3, refused: true},
			{at: 0, reserve: 2, due: 0},
			{at: 1, allow: 2, denied: true},
			{at: 1, reserve: 2, due: 2},
			{at: 1, allow: 1, denied: true},
			{at: 3, allow: 1},
		}},
		"cancel what was refused": {burst: 2, ahead: 2 * tick, steps: []step{
			{at: 0, reserve: 2, due: 0},
			{at: 0, reserve: 2, due: 2},
			{at: 0, reserve: 2, notOK: true},
			{at: 0, cancel: 2},
			{at: 2, reserve: 2, due: 4},
		}},
		"cancel twice": {burst: 2, ahead: time.Second, steps: []step{
			{at: 0, reserve: 2, due: 0},
			{at: 0, reserve: 2, due: 2},
			{at: 0, cancel: 1},
			{at: 0, cancel: 1},
			{at: 0, reserve: 2, due: 2},
		}},
		"the limit is raised": {burst: 2, steps: []step{
			{at: 0, reserve: 2, due: 0},
			{at: 0, reserve: 2, due: 2},
			{at: 1, limit: pglimit.PerSecond(20).WithBurst(2)}, // two of the four have flowed back at this rate
			{at: 1, reserve: 1, due: 1.5},
		}},
		"too far ahead": {burst: 2, ahead: tick, steps: []step{
			{at: 0, reserve: 2, due: 0},
			{at: 0, reserve: 1, due: 1},
			{at: 0, reserve: 1, notOK: true},
			{at: 1, reserve: 1, due: 2},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := waiting(t, newStore(), func(c *pglimit.Config) { c.Limit, c.MaxAhead = pglimit.PerSecond(10).WithBurst(test.burst), test.ahead })
				began := time.Now()
				made := make(map[int]*pglimit.Reservation)
				for i, step := range test.steps {
					time.Sleep(time.Until(began.Add(time.Duration(step.at) * tick)))
					switch {
					case step.allow > 0:
						if d, err := limiter.AllowN(t.Context(), "k", step.allow); err != nil || d.Allowed == step.denied {
							t.Errorf("row %d: %+v, %v", i, d, err)
						}
					case step.limit != pglimit.Limit{}:
						if err := limiter.SetLimit(step.limit); err != nil {
							t.Errorf("row %d: %v", i, err)
						}
					case step.reserve > 0:
						made[i] = reserves(t, limiter, i, step, began)
					default:
						if err := made[step.cancel].Cancel(t.Context()); err != nil {
							t.Errorf("row %d: %v", i, err)
						}
					}
				}
			})
		})
	}
}

func reserves(t *testing.T, limiter *pglimit.Limiter, row int, step step, began time.Time) *pglimit.Reservation {
	t.Helper()
	r, err := limiter.ReserveN(t.Context(), "k", step.reserve)
	var refused *pglimit.RequestError
	if errors.As(err, &refused) != step.refused {
		t.Errorf("row %d: %v", row, err)
	}
	if err != nil {
		return r
	}
	if r.OK() == step.notOK {
		t.Errorf("row %d: %+v", row, r.Decision())
	}
	want := time.Duration(math.MaxInt64)
	if r.OK() {
		want = time.Duration(step.due*float64(tick)) - time.Since(began)
	}
	if got := r.Delay(); got != want && !near(got, want) {
		t.Errorf("row %d: a delay of %v, want %v", row, got, want)
	}
	return r
}

// The table for Wait: at 10 per second, burst 3.
func TestWaitAsInTimeRate(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]struct {
		n        int64
		deadline time.Duration // negative: it has passed; 0: an hour
		cancel   time.Duration // after this time
		took     time.Duration
		ok       bool
	}{
		"simple": {
			{n: 1, deadline: -1},
			{n: 4},
			{n: 2, ok: true},
			{n: 3, took: 2 * tick, ok: true},
		},
		"cancel": {
			{n: 2, ok: true},
			{n: 3, cancel: tick, took: tick},
			{n: 2, ok: true}, // the three came back
		},
		"timeout": {
			{n: 2, deadline: tick, ok: true},
			{n: 3, deadline: tick},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := waiting(t, newStore(), func(c *pglimit.Config) { c.Limit = pglimit.PerSecond(10).WithBurst(3) })
				for i, row := range steps {
					if row.deadline == 0 {
						row.deadline = time.Hour
					}
					ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
					if row.cancel > 0 {
						time.AfterFunc(row.cancel, cancel)
					}
					began := time.Now()
					_, err := limiter.WaitN(ctx, "k", row.n)
					if took := time.Since(began); (err == nil) != row.ok || !near(took, row.took) {
						t.Errorf("row %d: after %v: %v", i, took, err)
					}
					cancel()
				}
			})
		})
	}
}

// In a transaction of the caller's, Reserve, Cancel, Refund and Settle go out on it.
func TestReserveInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		limiter := waiting(t, s, nil)
		in := limiter.On(pglimit.InTx(pglimitTx{}))
		first, err := in.Reserve(t.Context(), "k")
		if err != nil || !first.OK() || first.Delay() != 0 {
			t.Fatalf("%+v, %v", first, err)
		}
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if err := first.Cancel(t.Context()); err != nil || s.owes("k", limiter.Limit()) != 0 {
			t.Errorf("%v, and %d are owed", err, s.owes("k", limiter.Limit()))
		}
	})
}

func ExampleLimiter_Reserve() {
	ctx := context.Background()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{ // in production: pglimit.New(pool, strategies.TokenBucket{}, …)
		Name:     "jobs",
		Limit:    pglimit.Every(time.Hour),
		MaxAhead: 24 * time.Hour,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		r, err := limiter.Reserve(ctx, "nightly")
		switch {
		case err != nil:
			fmt.Println(err)
		case !r.OK():
			fmt.Println("not within a day, but after", r.Decision().RetryAfter)
		default:
			fmt.Println("start in", r.Delay().Round(time.Minute)) // or r.Cancel(ctx), if it is not needed after all
		}
	}
	// Output:
	// start in 0s
	// start in 1h0m0s
	// start in 2h0m0s
}
