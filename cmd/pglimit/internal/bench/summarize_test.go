package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// alternating fails at once, grants after 10 ms, denies after 20, is contended after 30, and
// begins again.
func alternating() fake {
	calls := 0
	return fake{name: "alternating", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
		turn := calls % 4
		calls++
		time.Sleep(time.Duration(turn) * 10 * time.Millisecond)
		switch turn {
		case 1:
			return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
		case 2:
			return pglimit.Decision{At: time.Now()}, nil
		case 3:
			return pglimit.Decision{Contended: true, At: time.Now()}, nil
		}
		return pglimit.Decision{}, &pgconn.PgError{Code: "40P01", Message: "deadlock"}
	}}
}

// Grants, denials and failures are told apart, in all and over time.
func TestSummaryTellsAnswersApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bareScenario()
		c.Callers, c.Keys, c.Limit = 1, 1, pglimit.PerSecond(1000)
		c.Costs = []scenario.Cost{{Tokens: 5, Share: 1}}
		d := fakeDrive(t, c, alternating())
		d.scenario.Phases[0].Length = 600 * time.Millisecond
		d.measure()
		d.elapsed = d.run(t.Context())
		got := d.summarize(DefaultAudit)
		if got.Allowed != 10 || got.Granted != 50 || got.Denied != 20 || got.Contended != 10 || got.Decisions != 30 || got.Errors["40P01 deadlock_detected"] != 10 {
			t.Errorf("%d allowed (%d tokens), %d denied, %d contended, %d decisions, errors %v", got.Allowed, got.Granted, got.Denied, got.Contended, got.Decisions, got.Errors)
		}
		if got.Cost != 5 || got.Seconds != 0.6 || got.Strategy != "alternating" || got.Limit != "1000/1s" || got.Scenario != "custom" {
			t.Errorf("%+v", got)
		}
		withinUS(t, "the median of grants", got.GrantLatency.P50, 10*time.Millisecond, 10*time.Millisecond)
		withinUS(t, "the median of denials", got.DenialLatency.P50, 20*time.Millisecond, 20*time.Millisecond)
		withinUS(t, "the slowest denial", got.DenialLatency.Max, 30*time.Millisecond, 30*time.Millisecond)
		withinUS(t, "the median of all", got.Latency.P50, 20*time.Millisecond, 20*time.Millisecond)
		if got.Latency.Count != 30 || got.GrantLatency.Count != 10 || got.Latency.Curve != nil || got.GrantLatency.Curve == nil {
			t.Errorf("%d latencies, %d of grants", got.Latency.Count, got.GrantLatency.Count)
		}
		var granted, denied, failed int64
		for _, p := range got.Series {
			granted, denied, failed = granted+p.Granted, denied+p.Denied, failed+p.Failed
		}
		if len(got.Series) != 6 || granted != 10 || denied != 20 || failed != 10 {
			t.Errorf("%d points with %d, %d, %d; want 6 with 10 granted, 20 denied, 10 failed", len(got.Series), granted, denied, failed)
		}
	})
}

// The audit is against the limit that the strategy ran under.
func TestAuditIsOfTheAdaptedLimit(t *testing.T) {
	t.Parallel()
	single := grantAfter(0)
	single.check = func(l pglimit.Limit) error {
		if l.Burst > 1 {
			return errors.New("a burst")
		}
		return nil
	}
	d := fakeDrive(t, bareScenario(), single) // 20/1s
	add(&d.recorders[0].history, 0, granted, 0, 50, 99)
	d.elapsed = time.Second
	got := d.summarize(DefaultAudit)
	if got.Audit.OverTokens != 1 || got.Limit != "20/1s burst 1" {
		t.Errorf("over by %d under %s; want 1, 20/1s burst 1", got.Audit.OverTokens, got.Limit)
	}
}

// Of calls that take 300 ms, each of 8 callers has three answers within the second. The
// fourth is a decision, and no part of any rate.
func TestLateAnswersAreInNoRate(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"grants": true, "denials": false} {
		synctest.Test(t, func(t *testing.T) {
			slow := fake{name: "slow", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
				time.Sleep(300 * time.Millisecond)
				d := pglimit.Decision{Allowed: allowed, At: time.Now()}
				if allowed {
					d.Granted = r.Tokens
				}
				return d, nil
			}}
			c := bareScenario()
			c.Callers = 8
			got := fakeDrive(t, c, slow).ran(t.Context(), time.Second)
			want := map[bool]float64{true: 24}
			if got.Decisions != 32 || got.DecisionsPerSecond != 24 || got.GrantsPerSecond != want[allowed] || got.DenialsPerSecond != want[!allowed] {
				t.Errorf("%s: %d decisions, %v/s, %v grants/s, %v denials/s", name, got.Decisions, got.DecisionsPerSecond, got.GrantsPerSecond, got.DenialsPerSecond)
			}
		})
	}
}
