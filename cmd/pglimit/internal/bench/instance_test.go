package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/wire"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// stubborn leases tokens and does not take them back.
type stubborn struct {
	fake

	settling func()
}

func (s stubborn) Lease(_ context.Context, _ pglimit.Session, r pglimit.LeaseRequest) (pglimit.Lease, error) {
	if r.Settle.Tokens > 0 {
		s.settling()
		return pglimit.Lease{}, errors.New("keep it")
	}
	return pglimit.Lease{Tokens: r.Tokens, At: time.Now(), Until: time.Now().Add(r.TTL)}, nil
}

// Leases are given back while there is a pool to do it by; that they could not be is
// heard of.
func TestInstanceGivesLeasesBackBeforeItsPoolCloses(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "host="+t.TempDir()) // where there is no server
	if err != nil {
		t.Fatal(err)
	}
	isClosed := func() bool {
		_, err := pool.Acquire(t.Context())
		return strings.Contains(err.Error(), "closed pool")
	}
	settled := 0
	strategy := stubborn{
		fake: fake{name: "stubborn", take: func(_ context.Context, r rate.Request) (pglimit.Decision, error) {
			return pglimit.Decision{Allowed: true, Granted: r.Tokens, At: time.Now()}, nil
		}},
		settling: func() {
			if settled++; isClosed() {
				t.Error("the pool is closed already")
			}
		},
	}
	c := bareScenario()
	c.Stages.Leases = true
	limiter, err := pglimit.New(pool, strategy, c.Limiter("stubborn", scenario.Subject{Strategy: strategy, Limit: pglimit.PerSecond(1000)}))
	if err != nil {
		t.Fatal(err)
	}
	for limiter.Stats().Allowed[pglimit.FromLease] == 0 { // a busy key
		if _, err := limiter.Allow(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
	}
	err = instance{pool, limiter}.close(t.Context())
	if err == nil || !strings.Contains(err.Error(), "keep it") || settled != 1 {
		t.Errorf("%v, after %d leases were given back; want that the one could not be", err, settled)
	}
	if !isClosed() {
		t.Error("the pool is open still")
	}
}

// openOnGreeter is an instance with four connections of the greeter.
func openOnGreeter(t *testing.T, g *greeter, strategy pglimit.Strategy) (instance, error) {
	t.Helper()
	s := bareScenario()
	s.Conns = 4
	s.Costs = []scenario.Cost{{Tokens: 3, Share: 1}, {Tokens: 1, Share: 1}}
	subject, err := s.Subject(strategy)
	if err != nil {
		t.Fatal(err)
	}
	return openInstance(t.Context(), g.config(t), s, subject, "bench-test", "pglimit bench test", &wire.Meter{})
}

// warming notes what its connections are asked.
type warming struct {
	fake

	mu    sync.Mutex
	asked map[int]int // how often so many requests at once
	other []string    // that were not for the warm-up
	fails func(requests int) error
}

func (w *warming) Take(_ context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked == nil {
		w.asked = map[int]int{}
	}
	w.asked[len(requests)]++
	for _, r := range requests {
		if !strings.HasPrefix(r.Key, warmupKey) || r.Limiter != "bench-test" || r.Tokens != 3 {
			w.other = append(w.other, fmt.Sprintf("%+v", r))
		}
	}
	if w.fails != nil {
		return nil, w.fails(len(requests))
	}
	return make([]pglimit.Decision, len(requests)), nil
}

// Each connection has prepared the statement of one request and that of several.
func TestInstanceOpensAllOfItsConnections(t *testing.T) {
	t.Parallel()
	g := &greeter{most: 4}
	w := &warming{fake: fake{name: "warming"}}
	in, err := openOnGreeter(t, g, w)
	if err != nil {
		t.Fatal(err)
	}
	if w.asked[1] != 4 || w.asked[2] != 4 || len(w.other) > 0 {
		t.Errorf("asked %v times, and for %v; want each of 4 for one request and for two", w.asked, w.other)
	}
	if s := in.pool.Stat(); s.TotalConns() != 4 || s.AcquiredConns() != 0 || g.dialed.Load() != 4 {
		t.Errorf("%d connections of which %d are held, %d made; want 4, 0, 4", s.TotalConns(), s.AcquiredConns(), g.dialed.Load())
	}
	if most := in.pool.Config().MaxConns; most != 4 {
		t.Errorf("there may be %d connections, want 4", most)
	}
	if app := in.pool.Config().ConnConfig.RuntimeParams["application_name"]; app != "pglimit bench test" {
		t.Errorf("the application is %q", app)
	}
	if err := in.close(t.Context()); err != nil {
		t.Error(err)
	}
	if total := in.pool.Stat().TotalConns(); total != 0 {
		t.Errorf("%d connections are left", total)
	}
}

// The error of an instance that cannot be opened names the strategy, once, and leaves no
// connection.
func TestInstanceThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "42883", Message: "there is no such function"}
	for want, c := range map[string]struct {
		most  int64
		fails error
	}{
		"warming: connection ":                      {most: 2},
		"of 4 (conns and --instances say how many)": {most: 0},
		"there is no such function":                 {most: 4, fails: refused},
	} {
		g := &greeter{most: c.most}
		w := &warming{fake: fake{name: "warming"}}
		if c.fails != nil {
			w.fails = func(int) error { return c.fails }
		}
		in, err := openOnGreeter(t, g, w)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "warming: ") != 1 || in.pool != nil {
			t.Errorf("%v; want one error with %q", err, want)
		}
		if c.fails != nil && !errors.Is(err, refused) {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
}
