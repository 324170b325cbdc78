package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// twoInstances is a load on two instances, whose limiters ask these strategies.
func twoInstances(t *testing.T, s scenario.Scenario, of ...pglimit.Strategy) *drive {
	t.Helper()
	s.Instances = len(of)
	subject, err := s.Subject(of[0])
	if err != nil {
		t.Fatal(err)
	}
	var instances []instance
	for _, strategy := range of {
		limiter, err := pglimit.New(noDatabase{}, strategy, s.Limiter("fake", subject))
		if err != nil {
			t.Fatal(err)
		}
		instances = append(instances, instance{limiter: limiter})
	}
	b := bench{config: Config{AuditDecisions: DefaultAudit, Seed: 1}}
	d := b.newDrive(instances, job{s, subject, 1})
	d.load.sleep = time.Sleep
	d.measure()
	return d
}

// Arrivals at an instance are for its own callers: one that stalls does not get its work
// done by another, as another process would not.
func TestArrivalsStayWithTheirInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var served, stuck atomic.Int64
		good := fake{name: "fake", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
			served.Add(1)
			return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
		}}
		dead := fake{name: "fake", take: func(ctx context.Context, _ rate.Request) (pglimit.Decision, error) {
			stuck.Add(1)
			<-ctx.Done()
			return pglimit.Decision{}, ctx.Err()
		}}
		got := twoInstances(t, openScenario(4, 1000), good, dead).ran(t.Context(), time.Second)
		// Of 999 arrivals, every second one is the first instance's. The other has two
		// callers, and they are busy for ever.
		if n := served.Load(); n < 499 || n > 500 || got.Allowed != n || stuck.Load() != 2 || got.Errors[kindUnanswered] != 2 || got.Errors[kindUnserved] < 497 {
			t.Errorf("%d served, %d stuck, errors %v; want half served, 2 unanswered, the others unserved", served.Load(), stuck.Load(), got.Errors)
		}
	})
}

// The warm-up is the beginning of the load: it asks, and is not counted, but its grants are
// audited, since they used up tokens.
func TestWarmUpIsAuditedAndNotCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		phases []scenario.Phase
		asked  int
	}{
		"closed loop": {[]scenario.Phase{{Length: time.Second}}, 4 * 20},
		"open loop":   {[]scenario.Phase{{Rate: 100, Length: time.Second}, {Rate: 300, Length: time.Second}}, 19}, // at the rate that it begins with
	} {
		synctest.Test(t, func(t *testing.T) {
			s := bareScenario()
			s.Callers, s.Keys, s.Limit, s.Arrivals = 4, 1, pglimit.PerSecond(10_000), scenario.Constant
			s.Phases, s.Warmup = c.phases, 200*time.Millisecond
			d := fakeDrive(t, s, grantAfter(10*time.Millisecond))
			d.timeline = nil
			for _, r := range d.recorders {
				r.timeline = nil
			}
			start := time.Now()
			d.warmUp(t.Context())
			if took := time.Since(start); took < 190*time.Millisecond || took > 210*time.Millisecond {
				t.Errorf("%s: the warm-up took %v", name, took)
			}
			d.measure()
			run := d.summarize(DefaultAudit)
			if run.Decisions != 0 || run.Audit.AuditedGrants != int64(c.asked) {
				t.Errorf("%s: %d decisions, %d grants audited; want none, %d", name, run.Decisions, run.Audit.AuditedGrants, c.asked)
			}
		})
	}
}

// An answer that comes after the user has ended the run does not make the run longer.
func TestInterruptedRunIsNoLongerThanItsWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := bareScenario()
		s.Callers = 1
		d := fakeDrive(t, s, grantAfter(700*time.Millisecond)) // which does not mind the context
		ctx, interrupt := context.WithCancel(t.Context())
		defer time.AfterFunc(900*time.Millisecond, interrupt).Stop()
		got := d.ran(ctx, time.Second)
		if d.elapsed != time.Second || got.Seconds != 1 || got.Decisions > 2 {
			t.Errorf("%v, %d decisions; want 1 s", d.elapsed, got.Decisions)
		}
	})
}

// Where denials are remembered, a denial's time may come from memory.
func TestTimesFromMemoryAreEstimates(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{true, false} {
		s := scenario.Custom()
		s.Stages.NoMemory = bare
		for _, r := range fakeDrive(t, s, grantAfter(0)).recorders[:s.Callers] {
			if r.history.estimated == bare {
				t.Fatalf("without memory: %v; times are estimates: %v", bare, r.history.estimated)
			}
		}
	}
}
