package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// stalling answers at once, but from 500 ms on not before 1.5 s.
func stalling() fake {
	start := time.Now()
	return fake{name: "stalls", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
		if at := time.Since(start); at >= 500*time.Millisecond && at < 1500*time.Millisecond {
			time.Sleep(1500*time.Millisecond - at)
		}
		return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
	}}
}

func openScenario(callers int, rps float64) scenario.Scenario {
	c := bareScenario()
	c.Callers, c.Arrivals = callers, scenario.Constant
	c.Phases = []scenario.Phase{{Rate: rps, Length: time.Second}}
	return c
}

// 2,000 arrivals in 2 s, a stall of 1 s in the middle: half of the arrivals fall
// into it, and their latencies are 1 s down to 0. A harness that counts from when it
// got around to sending would see 4 slow requests.
func TestOpenLoopCountsFromTheSchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openScenario(4, 1000)
		got := fakeDrive(t, c, stalling()).ran(t.Context(), 2*time.Second)
		if got.Decisions != 1999 || len(got.Errors) != 0 {
			t.Errorf("%d decisions, errors %v; want 1999, none", got.Decisions, got.Errors)
		}
		withinUS(t, "max", got.Latency.Max, 995*time.Millisecond, 1005*time.Millisecond)
		withinUS(t, "p90", got.Latency.P90, 795*time.Millisecond, 805*time.Millisecond)
		withinUS(t, "p50", got.Latency.P50, 0, 5*time.Millisecond)
		if got.DecisionsPerSecond < 999 || got.DecisionsPerSecond > 1000 {
			t.Errorf("%v decisions/s, want 999.5", got.DecisionsPerSecond)
		}
	})
}

func TestOpenLoopShowsArrivalsThatWereNeverSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := openScenario(4, 1000)
		dead := fake{name: "dead", take: func(ctx context.Context, _ rate.Request) (pglimit.Decision, error) {
			<-ctx.Done()
			return pglimit.Decision{}, ctx.Err()
		}}
		got := fakeDrive(t, c, dead).ran(t.Context(), time.Second)
		if got.Errors[kindUnanswered] != 4 || got.Errors[kindUnserved] != 995 || got.Decisions != 0 {
			t.Errorf("errors %v, %d decisions; want 4 unanswered, 995 unserved, no decision", got.Errors, got.Decisions)
		}
		// Those that were sent waited for a minute, the others from their time in the first second to the end of the
		// drain.
		withinUS(t, "max", got.Latency.Max, 60_980*time.Millisecond, 61_000*time.Millisecond)
		withinUS(t, "p50", got.Latency.P50, 5490*time.Millisecond, 5510*time.Millisecond)
	})
}

func TestPoissonArrivalsKeepTheRate(t *testing.T) {
	t.Parallel()
	c := openScenario(1, 1000)
	c.Arrivals = scenario.Poisson
	c.Phases[0].Length = time.Hour
	arrivals := newSchedule(c, 1, 0)
	var at time.Duration
	longer := 0 // than twice the mean: e⁻² of them
	const n = 100_000
	for range n {
		due, _ := arrivals.arrival()
		if due-at > 2*time.Millisecond {
			longer++
		}
		at = due
	}
	within(t, "100,000 arrivals at 1,000/s", at, 99*time.Second, 101*time.Second)
	if share := float64(longer) / n; share < 0.125 || share > 0.145 {
		t.Errorf("%.3f of the gaps are twice the mean or longer, want 0.135", share)
	}
}

// Constant gaps of a rate that is no whole number of nanoseconds do not drift.
func TestConstantArrivalsKeepTheRate(t *testing.T) {
	t.Parallel()
	c := openScenario(1, 700_000)
	c.Phases[0].Length = time.Hour
	arrivals := newSchedule(c, 1, 0)
	var at time.Duration
	for range 700_000 {
		at, _ = arrivals.arrival()
	}
	within(t, "700,000 arrivals at 700,000/s", at, time.Second-time.Microsecond, time.Second+time.Microsecond)
}

func TestClosedLoopWaitsForEachAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers = 8
		got := fakeDrive(t, c, grantAfter(10*time.Millisecond)).ran(t.Context(), time.Second)
		if got.Decisions != 800 || got.DecisionsPerSecond != 800 {
			t.Errorf("%d decisions, %v/s; want 800 of 8 callers with 10 ms each", got.Decisions, got.DecisionsPerSecond)
		}
		withinUS(t, "p50", got.Latency.P50, 9990*time.Microsecond, 10010*time.Microsecond)
	})
}

// What the caller interrupts is no error of the strategy's, and the rate is that of
// the time that there was.
func TestInterruptedLoopCountsWhatThereWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers = 8
		slow := fake{name: "slow", take: func(ctx context.Context, r rate.Request) (pglimit.Decision, error) {
			select {
			case <-time.After(10 * time.Millisecond):
				return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
			case <-ctx.Done():
				return pglimit.Decision{}, ctx.Err()
			}
		}}
		d := fakeDrive(t, c, slow)
		ctx, cancel := context.WithTimeout(t.Context(), 505*time.Millisecond)
		defer cancel()
		got := d.ran(ctx, time.Second)
		if elapsed := d.elapsed; elapsed != 505*time.Millisecond || got.Decisions != 400 || len(got.Errors) != 0 {
			t.Errorf("%v, %d decisions, errors %v; want 505ms, 400, none", d.elapsed, got.Decisions, got.Errors)
		}
	})
}

func TestErrorsAreCountedByKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers, c.Timeout = 1, 20*time.Millisecond
		answers := []error{&pgconn.PgError{Code: "40P01"}, &pgconn.PgError{Code: "XX000"}, errors.New("what"), nil}
		calls := 0
		failing := fake{name: "fails", take: func(ctx context.Context, _ rate.Request) (pglimit.Decision, error) {
			time.Sleep(10 * time.Millisecond)
			err := answers[calls%4]
			calls++
			if err == nil {
				<-ctx.Done() // for --timeout
				err = ctx.Err()
			}
			return pglimit.Decision{}, err
		}}
		got := fakeDrive(t, c, failing).ran(t.Context(), 500*time.Millisecond)
		for _, kind := range []string{"40P01 deadlock_detected", "XX000", kindOther, kindTimeout} {
			if got.Errors[kind] != 10 {
				t.Errorf("%d of %q, want 10", got.Errors[kind], kind)
			}
		}
		if got.Decisions != 0 || len(got.Errors) != 4 {
			t.Errorf("%d decisions, errors %v", got.Decisions, got.Errors)
		}
		// Of these only the timeout was a wait: the others took 10 ms.
		withinUS(t, "p50", got.Latency.P50, 19900*time.Microsecond, 20100*time.Microsecond)
		if n := got.Latency.Count; n != 10 {
			t.Errorf("%d latencies, want those of the 10 timeouts", n)
		}
	})
}

// A server that is gone refuses in no time: callers do not spin on it.
func TestClosedLoopBacksOffWithoutAConnection(t *testing.T) {
	t.Parallel()
	_, refused := pgconn.Connect(t.Context(), "host="+t.TempDir()) // where there is no socket
	for name, refusal := range map[string]error{
		"refused":    refused,
		"shut down":  &pgconn.PgError{Code: "57P01"},
		"broken off": fmt.Errorf("no decision: %w", io.ErrUnexpectedEOF),
	} {
		synctest.Test(t, func(t *testing.T) {
			c := bareScenario()
			c.Callers = 2
			refuses := fake{name: "refuses", take: func(context.Context, rate.Request) (pglimit.Decision, error) {
				time.Sleep(time.Millisecond)
				return pglimit.Decision{}, refusal
			}}
			got := fakeDrive(t, c, refuses).ran(t.Context(), 1010*time.Millisecond)
			failed := int64(0)
			for _, n := range got.Errors {
				failed += n
			}
			if failed < 20 || failed > 24 {
				t.Errorf("%s: %v in a second, want 10 of each of 2 callers", name, got.Errors)
			}
			delete(got.Errors, kindBreaker) // which opens, and refuses in their stead,
			delete(got.Errors, kindGivenUp) // or gives up one caller's call when the other's has failed
			if len(got.Errors) != 1 || got.Latency.Count != 0 {
				t.Errorf("%s: errors %v, latency %v; want one kind, none", name, got.Errors, got.Latency)
			}
		})
	}
}

func TestOverAdmissionIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers, c.Keys, c.Limit = 4, 1, pglimit.PerSecond(10)
		got := fakeDrive(t, c, grantAfter(10*time.Millisecond)).ran(t.Context(), time.Second)
		// 400 grants from 10 ms to 1 s, where the limit allows 10 and 9.9 more.
		if got.Audit.OverTokens != 381 || got.Verdict() != "OVER by 381" {
			t.Errorf("over by %d (%s), want 381", got.Audit.OverTokens, got.Verdict())
		}
		if !got.Over() {
			t.Error("it is not over")
		}
	})
}
