package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New], once, and share it; it is safe for concurrent use, and holds no connection
// and no goroutine while idle. [Limiter.Close] it before its pool.
type Limiter struct {
	// The stages. A stage that is nil is switched off.
	leases   *lease.Leases
	denials  *denials.Memory
	combiner *combine.Combiner
	circuit  *circuit.Breaker

	session  Session
	strategy Strategy
	config   Config
	timeout  time.Duration // of one decision
	failures *complaints
	waiting  *wait.Crowd // for Postgres; closed with the Limiter
	counters *counters
	parent   *Limiter // of which this one is InTx or OnConn; else nil
}

// New makes a limiter that decides with the strategy, on the pool: a *pgxpool.Pool. It does
// not connect. The error is a [*ConfigError], unless pool or strategy is nil. [Limiter.InTx]
// and [Limiter.OnConn] take in a transaction or on a connection of yours.
func New(pool Pool, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(pool) {
		return nil, errors.New("pglimit: New needs a pool, such as a *pgxpool.Pool")
	}
	if err := config.Validate(strategy); err != nil {
		return nil, err
	}
	l := &Limiter{
		session: rate.OnPool(pool), strategy: strategy, config: config,
		timeout:  orDefault(config.Timeout, defaultTimeout),
		failures: &complaints{logger: config.Logger, limiter: config.Name, keys: config.LogKeys},
		counters: new(counters),
		waiting:  wait.NewCrowd(orDefault(config.MaxWaiting, defaultMaxWaiting)),
	}
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
// the transaction ends, so keep it short. Config.Timeout has no default here. If one is set
// and ends a call, the connection is closed, and with it the transaction. OnError is not
// called, because the transaction has failed with the request. A Reset leaves the denials that
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
		session: session, strategy: l.strategy, config: l.config,
		timeout:  orDefault(l.config.Timeout, NoTimeout),
		failures: l.failures, waiting: l.waiting, counters: l.counters, parent: l,
	}
	in.config.OnError = nil
	return in
}

func (l *Limiter) makeStages(pool Pool) (err error) {
	c := l.config
	if !c.Memory.Off {
		if l.denials, err = denials.New(orDefault(c.Memory.Keys, defaultDenialKeys), orDefault(c.Memory.TTL, defaultDenialTTL)); err != nil {
			return &ConfigError{"Memory", err}
		}
	}
	if c.Leases.On {
		whose := lease.Config{Limiter: c.Name, Limit: c.Limit, Durability: c.Durability, TTL: orDefault(c.Leases.TTL, defaultLeaseTTL)}
		if l.leases, err = lease.New(whose, lease.Calls{Lease: l.lease, Forget: l.denials.Forget}); err != nil {
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
			combine.Calls{Send: l.send, GiveBack: l.giveBack, Learned: l.denials.Learned, Recall: l.denials.Recall})
	}
	return nil
}

// Close lets waiting callers have their answers, gives leases back and ends every goroutine of
// the limiter's. Close the pool after it. Calls after Close get ErrClosed, except those
// answered from memory.
//
// When ctx ends, Close stops waiting. Callers still waiting then get ErrClosed (with
// Combine.Off and Breaker.Off, when their own calls fail). The error says which leases could not
// be given back, or is that of ctx. Of a Limiter of InTx or OnConn, Close does nothing.
func (l *Limiter) Close(ctx context.Context) error {
	if l.parent != nil {
		return nil
	}
	unanswered := l.waiting.Close(ctx)
	unsettled := l.leases.Close(ctx)
	givenUp := l.combiner.Close(ctx)
	l.circuit.Close()
	return errors.Join(unsettled, cmp.Or(unanswered, givenUp))
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

// Reset fills the key's bucket. Other processes keep the tokens that they have leased
// (see [Config.Leases]), and can spend them besides the full bucket. The strategy must be
// a [Resetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	strategy, able := l.strategy.(Resetter)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s cannot reset a key: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	if err := l.waiting.Enter(1); err != nil {
		return err
	}
	defer l.waiting.Leave(1)
	parent := ctx
	ctx, cancel := l.timed(parent)
	defer cancel()
	err := l.circuit.Admit(ctx)
	if err == nil {
		err = l.leases.Drop(ctx, key)
	}
	if err == nil {
		err = l.call(ctx, func(ctx context.Context) error { return strategy.Reset(ctx, l.session, l.config.Name, key) })
	}
	err = l.late(parent, ctx, err)
	l.denials.Forget(key) // also after an error: the reset may have been done
	if err != nil {
		return fmt.Errorf("pglimit: reset of %q: %w", key, err)
	}
	return nil
}

// Limit is the limit of each key.
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
