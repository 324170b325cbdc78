package pglimit_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// noDB panics when it is used: what these tests are about happens before.
type noDB struct{ pglimit.Pool }

// Exec gives a sign of life, which a Breaker asks for.
func (noDB) Exec(_ context.Context, sql string, _ ...any) (tag pgconn.CommandTag, err error) {
	if sql != "select 1" {
		err = errors.New("noDB knows no " + sql)
	}
	return tag, err
}

// fake is a strategy that remembers what it was asked and does as it is told.
type fake struct {
	check func(pglimit.Limit) error
	take  func(context.Context, []pglimit.Request) ([]pglimit.Decision, error)

	mu      sync.Mutex // lanes call at the same time
	session pglimit.Session
	taken   [][]pglimit.Request
	reset   []string
	ctx     context.Context // of the last call

	refunds  []pglimit.Refund
	giveBack func(context.Context) error
}

var _ pglimit.Strategy = (*fake)(nil)

func (*fake) Name() string       { return "fake" }
func (*fake) Rule() pglimit.Rule { return bucket.Rule{} }

func (f *fake) Check(r *pglimit.Request) error {
	if f.check != nil {
		if err := f.check(r.Limit); err != nil {
			return err
		}
	}
	return rate.Unsupported(f.Name(), r)
}

// checkBut is Check of a fake that knows one more thing.
func (f *fake) checkBut(r *pglimit.Request, unusual func(*pglimit.Request)) error {
	but := *r
	unusual(&but)
	return f.Check(&but)
}

func (f *fake) Take(ctx context.Context, session pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
	f.mu.Lock()
	f.ctx, f.session, f.taken = ctx, session, append(f.taken, slices.Clone(requests))
	f.mu.Unlock()
	if f.take == nil {
		return make([]pglimit.Decision, len(requests)), nil
	}
	return f.take(ctx, requests)
}

func (f *fake) Reset(ctx context.Context, session pglimit.Session, limiter, key string) error {
	f.ctx, f.session, f.reset = ctx, session, append(f.reset, limiter+"/"+key)
	return nil
}

// answer makes a take that answers each request with the decision.
func answer(d pglimit.Decision) func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
		decisions := make([]pglimit.Decision, len(requests))
		for i := range decisions {
			decisions[i] = d
		}
		return decisions, nil
	}
}

// grantAll is a take that grants whatever is asked.
func grantAll(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		decisions[i] = pglimit.Decision{Allowed: true, Granted: r.Tokens}
	}
	return decisions, nil
}

// fail makes a take that knows no decision.
func fail(err error) func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) {
	return func(context.Context, []pglimit.Request) ([]pglimit.Decision, error) { return nil, err }
}

// GiveBack remembers what is given back.
func (f *fake) GiveBack(ctx context.Context, _ pglimit.Session, refunds []pglimit.Refund) error {
	f.mu.Lock()
	f.refunds = append(f.refunds, refunds...)
	f.mu.Unlock()
	if f.giveBack == nil {
		return nil
	}
	return f.giveBack(ctx)
}

// pglimitTx is a transaction that panics when it is used.
type pglimitTx struct{ pgx.Tx }

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// decided is how many decisions Postgres made.
func decided(s pglimit.Stats) int64 {
	return s.Allowed[pglimit.FromDatabase] + s.Denied[pglimit.FromDatabase]
}

// onlyPlain is a strategy that can do nothing but take.
type onlyPlain struct{ pglimit.Strategy }

func (s onlyPlain) Check(r *pglimit.Request) error { return rate.Unsupported(s.Name(), r) }
