package pglimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/internal/count"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New], once, and share it; it is safe for concurrent use, and holds no connection
// and no goroutine while idle. [Limiter.Close] it before its pool.
type Limiter struct {
	// The stages; nil: switched off.
	leases   *lease.Leases
	denials  *denials.Memory
	combiner *combine.Combiner
	circuit  *circuit.Breaker

	session  Session
	strategy Strategy
	config   Config
	timeout  time.Duration // of one decision
	failures *complaints
	waiting  *count.Crowd
	closed   *atomic.Bool
	counters *counters
}

// New makes a limiter that decides with the strategy, on the pool: a *pgxpool.Pool. It does
// not connect. The error is a [*ConfigError], unless pool or strategy is nil. To take in a
// transaction or on a connection of yours, see [Limiter.InTx] and [Limiter.OnConn].
func New(pool Pool, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(pool) {
		return nil, errors.New("pglimit: New needs a pool, such as a *pgxpool.Pool")
	}
	if strategy == nil {
		return nil, errors.New("pglimit: New needs a strategy, such as strategies.TokenBucket{}")
	}
	if err := config.Validate(strategy); err != nil {
		return nil, err
	}
	l := &Limiter{
		session: rate.OnPool(pool), strategy: strategy, config: config,
		timeout:  orDefault(config.Timeout, defaultTimeout),
		failures: &complaints{logger: config.Logger, limiter: config.Name},
		counters: new(counters),
		waiting:  &count.Crowd{Max: int64(orDefault(config.MaxWaiting, defaultMaxWaiting))},
		closed:   new(atomic.Bool),
	}
	if err := l.makeStages(); err != nil {
		return nil, err
	}
	return l, nil
}

// isNil says whether the interface holds nothing, or a pointer to nothing.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return value == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// InTx is the limiter in a transaction of the caller's: what it takes is charged if that
// commits.
//
// Its requests pass all stages by and go out one by one: what is rolled back must not be
// remembered, and nobody else's request belongs into the transaction. The row stays locked
// until the end of the transaction, so keep that short. Only a Config.Timeout that was set
// holds here: where it ends a call, the connection is closed, and with it the transaction.
// OnError is not asked, because the transaction has failed with the request. A Reset does not
// reach what this process remembers and has leased.
//
// It is good for as long as tx is, and until the Limiter is closed.
func (l *Limiter) InTx(tx Tx) *Limiter {
	if isNil(tx) {
		return l.on(nil)
	}
	return l.on(rate.InTx(tx))
}

// OnConn is the limiter on a connection of the caller's, inside a transaction or not: see
// [Limiter.InTx]. Of a *pgxpool.Conn pass its Conn().
func (l *Limiter) OnConn(conn *pgx.Conn) *Limiter {
	if conn == nil {
		return l.on(nil)
	}
	return l.on(rate.OnConn(conn))
}

// on a session of the caller's, past all stages. On none (nil), every call is an error.
func (l *Limiter) on(session Session) *Limiter {
	in := &Limiter{
		session: session, strategy: l.strategy, config: l.config,
		timeout:  orDefault(l.config.Timeout, NoTimeout),
		failures: l.failures, waiting: l.waiting, closed: l.closed, counters: l.counters,
	}
	in.config.OnError = nil
	return in
}

// makeStages that are not switched off.
func (l *Limiter) makeStages() (err error) {
	c := l.config
	if !c.Memory.Off {
		if l.denials, err = denials.New(orDefault(c.Memory.Keys, defaultDenialKeys), orDefault(c.Memory.TTL, defaultDenialTTL)); err != nil {
			return &ConfigError{"Memory", err}
		}
	}
	if c.Leases.On {
		whose := lease.Config{Limiter: c.Name, Limit: c.Limit, Durability: c.Durability, TTL: orDefault(c.Leases.TTL, defaultLeaseTTL)}
		if l.leases, err = lease.New(whose, l.waiting, lease.Calls{Lease: l.lease, Forget: l.denials.Forget}); err != nil {
			return &ConfigError{"Leases", err}
		}
	}
	if !c.Breaker.Off {
		l.circuit = circuit.New(max(l.timeout, 0), l.failures.circuit)
	}
	if !c.Combine.Off {
		l.combiner = combine.New(orDefault(c.Combine.Lanes, defaultLanes), l.waiting,
			combine.Calls{Send: l.send, GiveBack: l.giveBack, Learned: l.denials.Learned, Recall: l.denials.Recall})
	}
	return nil
}

// Close answers those who wait, gives leases back and ends every goroutine of the
// limiter's. When ctx ends, so does the wait: who waits then gets ErrClosed. Calls after
// Close get ErrClosed too, but for requests that need no round trip. Close the pool after it.
//
// The error says what could not be given back, or is that of ctx.
func (l *Limiter) Close(ctx context.Context) error {
	err := l.leases.Close(ctx)
	l.closed.Store(true)
	err = errors.Join(err, l.combiner.Close(ctx))
	l.circuit.Close()
	return err
}

// Allow takes one token of the key's bucket, if it is there.
//
// A denial is a Decision, not an error. An error means that no decision is known
// (or what [Config.OnError] made of that), or, as a [*RequestError], that the
// key cannot be one.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN takes n tokens of the key's bucket, all or none. More than the burst
// could never be granted and is a [*RequestError], as are zero and less.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 1 {
		return Decision{}, &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: it must be at least 1 (to look without taking, use Peek)", n)}
	}
	return l.decide(ctx, l.request(key, n, n))
}

// Peek looks at the key's bucket and takes nothing. Allowed says whether Allow
// would have been granted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, l.request(key, 0, 1))
}

// Reset fills the key's bucket. Tokens that other processes have set aside (see
// [Config.Leases]) stay theirs: they can be had besides. The strategy must be a
// [Resetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	strategy, able := l.strategy.(Resetter)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s cannot reset a key: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	ctx, cancel := l.timed(ctx)
	defer cancel()
	err := l.leases.Drop(ctx, key)
	if err == nil {
		err = l.guard(func() error { return strategy.Reset(ctx, l.session, l.config.Name, key) })
	}
	l.denials.Forget(key) // also after an error, which may hide that it was done
	if err != nil {
		return fmt.Errorf("pglimit: reset of %q: %w", key, err)
	}
	return nil
}

// Limit that each key has.
func (l *Limiter) Limit() Limit { return l.config.Limit }

func (l *Limiter) request(key string, tokens, unit int64) Request {
	return Request{
		Limiter:    l.config.Name,
		Key:        key,
		Limit:      l.config.Limit,
		Tokens:     tokens,
		Unit:       unit,
		Durability: l.config.Durability,
	}
}
