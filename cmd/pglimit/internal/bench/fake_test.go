package bench

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
)

// fake is a strategy that decides in this process. The limiter names and keys that
// it sees are those of the harness.
type fake struct {
	name  string
	take  func(ctx context.Context, r pglimit.Request) (pglimit.Decision, error)
	check func(pglimit.Limit) error
}

var _ pglimit.Strategy = fake{}

func (f fake) Name() string { return f.name }

func (f fake) Check(l pglimit.Limit) error {
	if f.check == nil {
		return nil
	}
	return f.check(l)
}

func (f fake) Take(ctx context.Context, _ pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
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
	return fake{name: "grants", take: func(_ context.Context, r pglimit.Request) (pglimit.Decision, error) {
		time.Sleep(d)
		return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
	}}
}

// bareConfig has each request go to the strategy by itself.
func bareConfig() Config {
	c := DefaultConfig()
	c.NoCombining, c.NoMemory = true, true
	return c
}

// fakeLoad is a load on the fake, being measured.
func fakeLoad(t testing.TB, c Config, strategy pglimit.Strategy) (*load, []*recorder, plan) {
	t.Helper()
	p, err := c.plan(strategy)
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := pglimit.New(noDatabase{}, strategy, c.limiter("fake", p))
	if err != nil {
		t.Fatal(err)
	}
	b := bench{config: c, keys: keyNames(c.Keys)}
	l, recorders := b.newLoad([]instance{{limiter: limiter}}, p)
	l.sleep = time.Sleep
	for _, r := range recorders {
		r.measuring = true
	}
	return l, recorders, p
}

func within(t *testing.T, what string, got, low, high time.Duration) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s is %v, want %v to %v", what, got, low, high)
	}
}
