package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/internal/group"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New] or [NewSQL], once, and share it; it is safe for concurrent use, and holds no connection
// and no goroutine while idle. [Limiter.Close] it before its pool.
type Limiter struct {
	// The stages. A stage that is nil is switched off.
	leases   *lease.Leases
	denials  *denials.Memory
	combiner *combine.Combiner
	groups   *group.Lane // of AllowAll
	circuit  *circuit.Breaker

	session  Session
	strategy Strategy
	config   Config
	limit    *atomic.Pointer[Limit] // shared with the Limiters of InTx and OnConn
	timeout  time.Duration          // of one decision
	failures *complaints
	waiting  *wait.Crowd // for Postgres; closed with the Limiter
	sleepers *sleepers   // the callers of Wait
	counters *counters
	parent   *Limiter // of which this one is InTx or OnConn; else nil
}

// New makes a limiter that decides with the strategy, on the pool: a *pgxpool.Pool. It does
// not connect. The error is a [*ConfigError], unless pool or strategy is nil. [Limiter.InTx]
// and [Limiter.OnConn] take in a transaction or on a connection of yours. For a *sql.DB, see
// [NewSQL].
func New(pool Pool, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(pool) {
		return nil, errors.New("pglimit: New needs a pool, such as a *pgxpool.Pool")
	}
	return newLimiter(pool, rate.OnPool(pool), strategy, config)
}

func newLimiter(pool any, session Session, strategy Strategy, config Config) (*Limiter, error) {
	if err := config.Validate(strategy); err != nil {
		return nil, err
	}
	l := &Limiter{
		session: session, strategy: strategy, config: config,
		limit:    new(atomic.Pointer[Limit]),
		timeout:  orDefault(config.Timeout, defaultTimeout),
		failures: &complaints{logger: config.Logger, limiter: config.Name, keys: config.LogKeys},
		counters: new(counters),
		waiting:  wait.NewCrowd(orDefault(config.MaxWaiting, defaultMaxWaiting)),
	}
	l.limit.Store(&config.Limit)
	l.sleepers = newSleepers(l.giveBack)
	if err := l.makeStages(pool); err != nil {
		return nil, err
	}
	return l, nil
}

// isNil says whether value is nil or a nil pointer.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return value == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// InTx is the limiter in a transaction of the caller's: a take is charged only if the
// transaction commits.
//
// Its requests pass no stage and go out one by one: a decision that is rolled back must not be
// remembered, and nobody else's request belongs in the transaction. The row stays locked until
// the transaction ends, so keep it short, and name keys in one order everywhere: two transactions that
// lock them in different orders deadlock. Durability is that of the transaction. Config.Timeout has
// no default here. If one is set and ends a call, the connection is closed, and with it the
// transaction. OnError is not called, because an error of Postgres, such as your lock_timeout's, may have
// aborted the transaction: in strategies.TokenBucket that of a request for one key does. A Reset leaves the denials that
// this process remembers, and its leases, as they are.
//
// It works until tx ends or the Limiter is closed.
func (l *Limiter) InTx(tx Tx) *Limiter {
	if isNil(tx) {
		return l.on(nil)
	}
	return l.on(rate.InTx(tx))
}

// OnConn is the limiter on a connection of the caller's, inside a transaction or not: see
// [Limiter.InTx]. For a *pgxpool.Conn, pass its Conn().
func (l *Limiter) OnConn(conn *pgx.Conn) *Limiter {
	if conn == nil {
		return l.on(nil)
	}
	return l.on(rate.OnConn(conn))
}

// on a session of the caller's, without stages. If it is nil, every call returns an error.
func (l *Limiter) on(session Session) *Limiter {
	in := &Limiter{
		session: session, strategy: l.strategy, config: l.config, limit: l.limit,
		timeout:  orDefault(l.config.Timeout, NoTimeout),
		failures: l.failures, waiting: l.waiting, sleepers: l.sleepers, counters: l.counters, parent: l,
	}
	in.config.OnError = nil
	return in
}

func (l *Limiter) makeStages(pool any) (err error) {
	c := l.config
	if !c.Memory.Off {
		if l.denials, err = denials.New(orDefault(c.Memory.Keys, defaultDenialKeys), orDefault(c.Memory.TTL, defaultDenialTTL), l.strategy.Rule()); err != nil {
			return &ConfigError{"Memory", err}
		}
	}
	if c.Leases.On {
		whose := lease.Config{Durability: c.Durability, TTL: orDefault(c.Leases.TTL, defaultLeaseTTL)}
		if l.leases, err = lease.New(whose, lease.Calls{Lease: l.lease, Rule: l.strategy.Rule(), Forget: l.denials.Forget}); err != nil {
			return &ConfigError{"Leases", err}
		}
	}
	if !c.Breaker.Off {
		timeout := l.timeout
		if timeout == NoTimeout {
			timeout = defaultTimeout
		}
		l.circuit = circuit.New(timeout, l.signOfLife(pool), l.failures.circuit)
	}
	if !c.Combine.Off {
		l.combiner = combine.New(orDefault(c.Combine.Lanes, defaultLanes),
			combine.Calls{Send: l.send, GiveBack: l.giveBack, Rule: l.strategy.Rule(), Learned: l.denials.Learned, Recall: l.denials.Recall})
		l.groups = group.New(group.Calls{Send: l.sendGroups, GiveBack: l.giveBack, Recall: l.knownGroup})
	}
	return nil
}

// Close lets waiting callers have their answers, but ends what is longer: callers of Wait who wait for
// their tokens to come get ErrClosed, and the tokens are given back. It gives leases back and ends every goroutine of
// the limiter's. Close the pool after it. Calls after Close get ErrClosed, except those
// answered from memory.
//
// When ctx ends, Close stops waiting. Callers still waiting then get ErrClosed (with
// Combine.Off and Breaker.Off, when their own calls fail). The error says how many leases could
// not be given back, or is that of ctx. Of a Limiter of InTx or OnConn, Close does nothing.
func (l *Limiter) Close(ctx context.Context) error {
	if l.parent != nil {
		return nil
	}
	asleep := l.sleepers.Close(ctx)
	unanswered := l.waiting.Close(ctx)
	unsettled := l.leases.Close(ctx)
	givenUp := errors.Join(l.combiner.Close(ctx), l.groups.Close(ctx))
	l.circuit.Close()
	return errors.Join(unsettled, cmp.Or(asleep, unanswered, givenUp))
}

// Allow takes one token of the key's bucket, if it is there.
//
// A denial is a Decision, not an error. A [*RequestError] means that the key is not
// valid. Any other error means that no decision is known; [Config.OnError] may have
// chosen it.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN takes n tokens of the key's bucket, all or none. If n is more than the
// burst, or less than one, the error is a [*RequestError].
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	return l.AllowLimitN(ctx, key, Limit{}, n)
}

// AllowLimit is Allow under a limit of the caller's, such as that of a customer's plan. The zero
// Limit means the Limiter's own. If the limit is not valid, or is one that the strategy cannot
// keep, the error is a [*LimitError].
//
// Each key has one bucket, whatever the limits: what was used under one limit is used under
// another. So use a key under one limit at a time. For several limits on one key, such as one per
// second and one per day, give each a name: see [Limiter.Take].
func (l *Limiter) AllowLimit(ctx context.Context, key string, limit Limit) (Decision, error) {
	return l.AllowLimitN(ctx, key, limit, 1)
}

// AllowLimitN is [Limiter.AllowLimit] for n tokens, all or none.
func (l *Limiter) AllowLimitN(ctx context.Context, key string, limit Limit, n int64) (Decision, error) {
	if n < 1 {
		return Decision{}, tooFew(n)
	}
	return l.decide(ctx, Request{Key: key, Limit: limit, Tokens: n})
}

func tooFew(n int64) error {
	return &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: it must be at least 1 (to look without taking, use Peek)", n)}
}

// Peek looks at the key's bucket and takes nothing. Allowed says whether Allow
// would have been granted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, Request{Key: key})
}

// Reset fills the key's bucket, and ends its block (see [Config.Block]). A call that is under way may be granted
// behind it and be dated up to 100 ms earlier. Other processes keep the tokens that they have leased
// (see [Config.Leases]), and can spend them besides the full bucket. The strategy must be
// a [Resetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]). A bad key is a
// [*RequestError].
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	strategy, able := l.strategy.(Resetter)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s cannot reset a key: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	bucket := rate.Bucket{Limiter: l.config.Name, Key: key}
	err := l.asCaller(ctx, 1, func(ctx context.Context) error {
		defer l.leases.Pause(bucket)() // until the bucket is full: a lease could be spent on top of that
		if err := l.leases.Drop(ctx, bucket); err != nil {
			return err
		}
		return l.call(ctx, "reset", 0, func(ctx context.Context) error { return strategy.Reset(ctx, l.session, l.config.Name, key) })
	})
	l.denials.Forget(bucket) // also after an error: the reset may have been done
	if err != nil {
		return fmt.Errorf("pglimit: reset of %q: %w", key, err)
	}
	return nil
}

// ForgetDenials makes this Limiter ask Postgres again about a bucket, of whatever Limiter name. Its
// own Reset, Refund and Settle do that by themselves. It is for the others of this process, which
// may remember the bucket as one of a group, or of a Take. Leases stay as they are.
func (l *Limiter) ForgetDenials(limiter, key string) {
	l.denials.Forget(rate.Bucket{Limiter: limiter, Key: key})
}

// Limit is the limit of each key, as of now: see [Limiter.SetLimit].
func (l *Limiter) Limit() Limit { return *l.limit.Load() }

// SetLimit changes the limit of each key. Requests that are under way keep the limit that they
// began with; all later ones have the new one, also those of InTx and OnConn. What a key has
// used stays used, see [Config].Limit. What was reserved before (Wait, Reserve) keeps its promised
// times: if the limit is raised, it comes on top of what newer callers get. If the limit is not valid, or is one that the strategy
// cannot keep, the error is a [*LimitError] and nothing changes.
//
// It changes this process only.
func (l *Limiter) SetLimit(limit Limit) error {
	if err := checkLimit(l.strategy, limit); err != nil {
		return err
	}
	l.limit.Store(&limit)
	return nil
}
