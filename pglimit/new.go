package pglimit

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/internal/newkeys"
	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/internal/registry"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
)

// New makes a limiter that decides with the strategy, on the pool: a *pgxpool.Pool. It does
// not connect. The error is a [*ConfigError], unless pool, strategy or the strategy's Rule is nil.
// [Limiter.On] takes in a transaction or on a connection of yours. For a *sql.DB, see [NewSQL].
func New(pool Pool, strategy Strategy, config Config) (*Limiter, error) {
	if isNil(pool) {
		return nil, errors.New("pglimit: New needs a pool, such as a *pgxpool.Pool")
	}
	return newLimiter(pool, postgres.OnPool(pool), strategy, config)
}

func newLimiter(pool any, session Session, strategy Strategy, config Config) (*Limiter, error) {
	if err := config.Validate(strategy); err != nil {
		return nil, err
	}
	timeout := orDefault(config.Timeout, defaultTimeout)
	config.setDefaults()
	l := &Limiter{
		session: session, strategy: strategy, config: config, nodes: config.Nodes,
		limit:    new(atomic.Pointer[Limit]),
		timeout:  timeout,
		failures: &failureLog{logger: config.Logger, limiter: config.Name, keys: config.LogKeys},
		counters: new(counters), observers: new(observers),
		waiting: wait.NewCallers(config.MaxWaiting),
	}
	if l.nodes == nil && strategy.Name() == "token_bucket" {
		l.nodes = onOnePool(session)
	}
	l.limit.Store(&config.Limit)
	l.queue = queue.New(l.giveBack)
	l.again = make(chan struct{}, max(1, min(8, config.MaxWaiting/4)))
	if err := l.makeStages(pool); err != nil {
		return nil, err
	}
	l.rules = config.Limits.enter(config.Name, strategy, l.denials.ForgetAll)
	l.share = adjust.New(config.Adjust, l.failures.adjust)
	if l.rules != nil {
		l.answers = append(l.answers, l.rules.Answer)
	}
	if l.share != nil {
		l.answers = append(l.answers, l.share.Answer)
	}
	l.top = config.Top.stage().Enter(config.Name, l.answered)
	return l, nil
}

// memories of denials of this process's Limiters: each may remember any bucket, as one of a group.
var memories registry.Registry[denials.Memory]

func (l *Limiter) makeStages(pool any) (err error) {
	c, rule := l.config, l.strategy.Rule()
	if !c.Memory.Off {
		if l.denials, err = denials.New(c.Memory.Keys, c.Memory.TTL, rule); err != nil {
			return &ConfigError{"Memory", err}
		}
	}
	l.eachMemory = memories.Add(pool, l.strategy.Name(), l.denials)
	if c.Leases.On {
		whose := lease.Config{Durability: c.Durability, TTL: c.Leases.TTL}
		if l.leases, err = lease.New(whose, lease.Calls{Lease: l.lease, Rule: rule, Forget: l.forget}); err != nil {
			return &ConfigError{"Leases", err}
		}
	}
	if !c.Breaker.Off {
		timeout := l.timeout
		if timeout == NoTimeout {
			timeout = defaultTimeout
		}
		l.circuit = circuit.New(timeout, l.sign, func(open bool, why error) {
			if !open {
				postgres.Recovered(l.session)
			}
			l.failures.circuit(open, why)
		})
	}
	combined := combine.Functions{Send: l.roundTrip, GiveBack: l.giveBack, Rule: rule, Learned: l.denials.Learned, Recall: l.recall}
	if l.nodes != nil {
		combined.Shard, combined.Lane = l.nodes.shardOf, l.nodes.lane
	}
	if !c.Combine.Off {
		l.combiner = combine.New(c.Combine.Lanes, combined)
	}
	if c.NewKeys.Limit == (Limit{}) {
		return nil
	}
	asks := newkeys.Functions{
		Look: l.obtain, Take: func(ctx context.Context, tokens []*claim) { l.obtain(ctx, l.unknown(tokens)) },
	}
	if !c.Combine.Off && !l.blocks() {
		l.looks = combine.New(1, combined)
		asks.Look = l.looks.Decide
	}
	if l.newKeys, err = newkeys.New(c.Name, c.NewKeys.Limit, c.Durability, c.NewKeys.Keys, asks); err != nil {
		return &ConfigError{"NewKeys", err}
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
// not be given back, or is that of ctx. Of a Limiter that [Limiter.On] made, Close does nothing.
func (l *Limiter) Close(ctx context.Context) error {
	if l.parent != nil {
		return nil
	}
	reserved := l.queue.Close(ctx)
	unanswered := l.waiting.Close(ctx)
	unsettled := l.leases.Close(ctx)
	givenUp := cmp.Or(l.looks.Close(ctx), l.combiner.Close(ctx))
	l.circuit.Close()
	l.rules.Leave(ctx)
	l.share.Close(ctx)
	l.top.Leave(ctx)
	if l.nodes != l.config.Nodes {
		l.nodes.Close()
	}
	return errors.Join(unsettled, cmp.Or(reserved, unanswered, givenUp))
}

// NewSQL is [New] on a *sql.DB, with the driver github.com/jackc/pgx/v5/stdlib or
// github.com/lib/pq. [Limiter.On] takes in a transaction or on a connection of yours.
//
// sqlx, Bun, GORM, ent and sqlc keep a *sql.DB, or embed one: DB of a sqlx.DB or a bun.DB, what
// DB() of a gorm.DB or of ent's driver returns.
//
// A decision is one round trip with pgx, and with lib/pq if its connection string says
// binary_parameters=yes; else lib/pq prepares each statement, which makes two, and cannot be used
// behind PgBouncer in transaction mode. ForUpdateNowait needs eight with either, because
// database/sql has no pipelines. In a transaction of yours, a savepoint costs all but TokenBucket two
// more. Over database/sql, signs of life for the [Breaker] come from
// connections of db: leave room for them in MaxOpenConns. lib/pq does not say why a
// connection broke: when the server ends its sessions one decision fails, as unavailable, for each
// connection that is in use.
func NewSQL(db *sql.DB, strategy Strategy, config Config) (*Limiter, error) {
	if db == nil {
		return nil, errors.New("pglimit: NewSQL needs a *sql.DB")
	}
	return newLimiter(db, postgres.OnSQLDB(db), strategy, config)
}
