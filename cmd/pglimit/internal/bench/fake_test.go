package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fake is a strategy that decides in this process. The limiter names and keys that
// it sees are those of the harness.
type fake struct {
	name  string
	take  func(ctx context.Context, r rate.Request) (pglimit.Decision, error)
	check func(pglimit.Limit) error
}

var _ pglimit.Strategy = fake{}

func (f fake) Name() string { return f.name }

func (fake) Rule() pglimit.Rule { return bucket.Rule{} }

func (f fake) Check(r *rate.Request) error {
	l := r.Limit
	if f.check == nil {
		return nil
	}
	return f.check(l)
}

func (f fake) Take(ctx context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	d, err := f.take(ctx, requests[0])
	return []pglimit.Decision{d}, err
}

// noDatabase is a pool that a fake does not use.
type noDatabase struct{ pglimit.Pool }

// Exec gives a sign of life.
func (noDatabase) Exec(context.Context, string, ...any) (tag pgconn.CommandTag, err error) {
	return tag, nil
}

// grantAfter grants everything, each time after so long.
func grantAfter(d time.Duration) fake {
	return fake{name: "grants", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
		time.Sleep(d)
		return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
	}}
}

// bareScenario has each request go to the strategy by itself.
func bareScenario() scenario.Scenario {
	s := scenario.Custom()
	s.Stages.NoCombining, s.Stages.NoMemory = true, true
	return s
}

// fakeDrive is a load on the fake, being measured.
func fakeDrive(t testing.TB, s scenario.Scenario, strategy pglimit.Strategy) *drive {
	t.Helper()
	return fakeAudited(t, s, strategy, DefaultAudit)
}

// fakeAudited has room for so many decisions.
func fakeAudited(t testing.TB, s scenario.Scenario, strategy pglimit.Strategy, audit int) *drive {
	t.Helper()
	subject, err := s.Subject(strategy)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := pglimit.New(noDatabase{}, strategy, s.Limiter("fake", subject))
	if err != nil {
		t.Fatal(err)
	}
	b := bench{config: Config{AuditDecisions: audit, Seed: 1}}
	instances := make([]instance, s.Instances)
	for i := range instances {
		instances[i].limiter = limiter
	}
	d := b.newDrive(instances, job{s, subject, 1})
	d.load.sleep = time.Sleep
	d.measure()
	return d
}

// ran runs the load, for that long, and returns what came of it.
func (d *drive) ran(ctx context.Context, length time.Duration) result.Run {
	d.scenario.Phases[len(d.scenario.Phases)-1].Length = length
	d.measure()
	d.elapsed = d.run(ctx)
	return d.summarize(DefaultAudit)
}

// withinUS is for a latency in microseconds, which is 1 % exact.
func withinUS(t *testing.T, what string, us float64, low, high time.Duration) {
	t.Helper()
	within(t, what, time.Duration(us*1000), low-low/100, high+high/100)
}

func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s is %v, want %v to %v", what, got, low, high)
	}
}
