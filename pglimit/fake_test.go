package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
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
	able  bool // it knows groups, IDs and blocks
	take  func(context.Context, []rate.Request) ([]pglimit.Decision, error)

	mu      sync.Mutex // lanes call at the same time
	session pglimit.Session
	taken   [][]rate.Request
	reset   []string
	ctx     context.Context // of the last call

	refunds  []pglimit.Refund
	giveBack func(context.Context) error
}

var _ pglimit.Strategy = (*fake)(nil)

func (*fake) Name() string       { return "fake" }
func (*fake) Rule() pglimit.Rule { return bucket.Rule{} }

func (f *fake) Check(r *rate.Request) error {
	if f.check != nil {
		if err := f.check(r.Limit); err != nil {
			return err
		}
	}
	if f.able {
		return nil
	}
	return rate.Unsupported(f.Name(), r)
}

func (f *fake) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
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
func answer(d pglimit.Decision) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		decisions := make([]pglimit.Decision, len(requests))
		for i := range decisions {
			decisions[i] = d
		}
		return decisions, nil
	}
}

// grantAll is a take that grants whatever is asked.
func grantAll(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		decisions[i] = pglimit.Decision{Allowed: true, Granted: r.Tokens}
	}
	return decisions, nil
}

// fail makes a take that knows no decision.
func fail(err error) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(context.Context, []rate.Request) ([]pglimit.Decision, error) { return nil, err }
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

func (s onlyPlain) Check(r *rate.Request) error { return rate.Unsupported(s.Name(), r) }

// store is a strategy in memory, by the test's clock. A call takes as long as latency says, each way.
type store struct {
	fake
	memory  *pglimittest.Strategy
	latency time.Duration
	onReset func()
}

func newStore() *store {
	s := &store{memory: pglimittest.MemoryOn(time.Now)}
	s.take = s.decide
	s.giveBack = func(ctx context.Context) error { return travel(ctx, s.latency) }
	return s
}

func (s *store) Check(r *rate.Request) error { return s.memory.Check(r) }

func (s *store) decide(ctx context.Context, requests []rate.Request) (decisions []pglimit.Decision, err error) {
	if err = travel(ctx, s.latency); err == nil {
		if decisions, err = s.memory.Take(ctx, nil, requests); err == nil {
			err = travel(ctx, s.latency)
		}
	}
	return decisions, err
}

func (s *store) GiveBack(ctx context.Context, session pglimit.Session, refunds []pglimit.Refund) error {
	if err := s.fake.GiveBack(ctx, session, refunds); err != nil {
		return err
	}
	return s.memory.GiveBack(ctx, session, refunds)
}

func (s *store) Lease(ctx context.Context, session pglimit.Session, r pglimit.LeaseRequest) (lease pglimit.Lease, err error) {
	if err = travel(ctx, s.latency); err == nil {
		if lease, err = s.memory.Lease(ctx, session, r); err == nil {
			err = travel(ctx, s.latency)
		}
	}
	return lease, err
}

func (s *store) Reset(ctx context.Context, session pglimit.Session, limiter, key string) error {
	if s.onReset != nil {
		s.onReset()
	}
	return s.memory.Reset(ctx, session, limiter, key)
}

// owes is how many tokens the bucket owes now, in thousandths.
func (s *store) owes(key string, limit pglimit.Limit) int64 {
	peek := rate.Request{Limiter: "api", Key: key, Limit: limit, Unit: 1}
	decisions, err := s.memory.Take(context.Background(), nil, []rate.Request{peek})
	if err != nil {
		return -1
	}
	return int64(decisions[0].ResetAfter) * 1000 / int64(limit.Token())
}

// waiting is a Limiter of 10/s, burst 1, with every stage that is on by default.
func waiting(t *testing.T, s pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(noDB{}, s, config(func(c *pglimit.Config) {
		c.Combine.Off, c.Memory.Off, c.Breaker.Off = false, false, true
		c.Limit = pglimit.PerSecond(10).WithBurst(1)
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// near says whether a time is the one wanted, or at most 0.2 % later, by which clocks may differ.
func near(got, want time.Duration) bool {
	return got >= want && got <= want+want/500+time.Microsecond
}

// server is a strategy whose calls take as long as the test wants: each waits until it
// is let go.
type server struct {
	fake
	goOn chan struct{}
}

func newServer(take func(context.Context, []rate.Request) ([]pglimit.Decision, error)) *server {
	s := &server{goOn: make(chan struct{})}
	s.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		select {
		case <-s.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return take(ctx, requests)
	}
	return s
}

// travel takes that long, or until the context ends.
func travel(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish lets the call under way go, and waits until its answers are heard.
func (s *server) finish() {
	s.goOn <- struct{}{}
	synctest.Wait()
}

// asked is what the call number i was asked, such as "a:1 b:6/2".
func (f *fake) asked(i int) string {
	var texts []string
	for _, r := range f.taken[i] {
		text := fmt.Sprintf("%s:%d", r.Key, r.Tokens)
		if r.Unit != r.Tokens {
			text += fmt.Sprintf("/%d", r.Unit)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// heard is what a caller was told.
type heard struct {
	pglimit.Decision
	err error
}

// callers ask one after another, each in a goroutine of its own.
type callers struct {
	t       *testing.T
	limiter *pglimit.Limiter
}

func (c callers) ask(ctx context.Context, key string, tokens int64) *heard {
	h := &heard{err: errors.New("no answer yet")}
	go func() {
		if tokens == 0 {
			h.Decision, h.err = c.limiter.Peek(ctx, key)
		} else {
			h.Decision, h.err = c.limiter.AllowN(ctx, key, tokens)
		}
	}()
	synctest.Wait()
	return h
}

// combining has one lane, so that every request meets the others.
func combining(t *testing.T, strategy pglimit.Strategy, change func(*pglimit.Config)) callers {
	return callers{t, newLimiter(t, strategy, func(c *pglimit.Config) {
		c.Combine.Off, c.Combine.Lanes = false, 1
		if change != nil {
			change(c)
		}
	})}
}

// buckets is a take that grants what there is of each key, and refills nothing.
func buckets(tokens map[string]int64) func(context.Context, []rate.Request) ([]pglimit.Decision, error) {
	return func(_ context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		decisions := make([]pglimit.Decision, len(requests))
		for i, r := range requests {
			granted := min(r.Tokens, tokens[r.Key]) / r.Unit * r.Unit
			tokens[r.Key] -= granted
			used := r.Limit.Burst - tokens[r.Key]
			decisions[i] = pglimit.Decision{
				Allowed: granted > 0, Granted: granted, Remaining: tokens[r.Key],
				ResetAfter: time.Duration(used) * 100 * time.Millisecond, At: time.Unix(1000, 0),
			}
			if tokens[r.Key] < r.Unit {
				decisions[i].RetryAfter = time.Duration(r.Unit-tokens[r.Key]) * 100 * time.Millisecond
			}
		}
		return decisions, nil
	}
}

// onMemory is a Limiter as in production, with a database in memory.
func onMemory(t *testing.T, memory *pglimittest.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	c := pglimit.Config{Name: "api", Limit: pglimit.PerHour(100), Leases: pglimit.Leases{On: true, TTL: 10 * time.Second}}
	if change != nil {
		change(&c)
	}
	limiter, err := pglimit.New(memory.Pool(), memory, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := limiter.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return limiter
}
