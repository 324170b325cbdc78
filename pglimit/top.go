package pglimit

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/top"
)

// Top counts which keys are denied and granted most, for [Config].Top of any number of Limiters: so operators see who
// is being limited, with [Limiter.Top], "pglimit top" or the view pglimit.top, which add up what all processes counted
// in the last 1, 10 and 60 minutes.
//
// A process counts in bounded memory: some 100 denied and 100 granted keys of each limiter, by the algorithm
// Space-Saving, and of 256 limiters at most. While a Limiter uses it, one statement each five seconds writes the
// numbers of all limiters to the table pglimit.top_keys, with how often each limiter granted, denied and failed; a denial
// by itself still writes nothing. The cleanup removes them after an hour. If they cannot be written, decisions go on,
// and it is tried again every minute.
//
// A number is never too high, and at most a hundredth of the limiter's denied (or granted) requests of that process and
// minute too low: a key that is not listed has no more than these. It counts requests, not tokens, as callers were
// told; of a group, those that lacked tokens, or all that were granted. Peeks do not count. Of what a process answers
// without asking Postgres (from memory, leases or rules), one request in 64 is counted, as 64: there a number is an
// estimate, a tenth off or so at 6,400.
type Top struct{ top *top.Top }

// TopConfig of [TopFrom]. The zero value of a field means its default.
type TopConfig struct {
	// HashKeys is a secret of at least 16 bytes. With it, keys are stored and shown as "hmac:" and the first half of
	// their HMAC-SHA256 in hex: they may be people. All processes should have the same. [Top.Shown] finds a key's
	// line. Nil: keys are stored as they are.
	HashKeys []byte

	// Logger hears when the numbers cannot be written, and when they can again. Nil: nothing is logged.
	Logger *slog.Logger
}

// TopFrom writes with connections of the pool: a *pgxpool.Pool. It does not connect before a Limiter uses it.
func TopFrom(pool Pool, config TopConfig) *Top {
	if isNil(pool) {
		return &Top{top.New(nil, top.Config(config))}
	}
	return &Top{top.New(postgres.OnPool(pool), top.Config(config))}
}

// TopFromSQL is [TopFrom] on a *sql.DB: see [NewSQL].
func TopFromSQL(db *sql.DB, config TopConfig) *Top {
	if db == nil {
		return &Top{top.New(nil, top.Config(config))}
	}
	return &Top{top.New(postgres.OnSQLDB(db), top.Config(config))}
}

// stage is nil if nothing is counted.
func (t *Top) stage() *top.Top {
	if t == nil {
		return nil
	}
	return t.top
}

// answered counts what the Limiter granted, denied and failed.
func (l *Limiter) answered() (n top.Totals) {
	c := l.counters
	for i := range c.allowed {
		n[top.Granted] += c.allowed[i].Load()
		n[top.Denied] += c.denied[i].Load()
	}
	for i := range c.failed {
		n[top.Failed] += c.failed[i].Load()
	}
	return n
}

// Shown is the key as a [TopKey] has it: hashed, with HashKeys.
func (t *Top) Shown(key string) string { return t.top.Shown(key) }

// TopQuery asks for keys. The zero value of a field means its default.
type TopQuery struct {
	Limiter string // empty: of all limiters; in [Limiter.Top], of the Limiter
	Granted bool   // the keys granted most; else those denied most
	Minutes int    // 1, 10 or 60, and up to one more; zero: 10
	Limit   int    // how many; zero: 20
}

// TopKey is a key, as it is stored, and how often it was denied and granted in the last minutes: see [Top].
type TopKey = top.Key

// Keys returns the keys that were denied or granted most, of all processes, the largest numbers first. The error is a
// [*RequestError] if the query is not valid.
func (t *Top) Keys(ctx context.Context, query TopQuery) ([]TopKey, error) {
	return t.top.Keys(ctx, top.Query(query))
}

// Top returns the keys of the Limiter that were denied or granted most, of all processes that have a [Config].Top, the
// largest numbers first. It takes Config.Timeout at most. The error is a [*RequestError] if the query is not valid.
func (l *Limiter) Top(ctx context.Context, query TopQuery) (keys []TopKey, err error) {
	ctx, cancel := l.timed(ctx)
	defer cancel()
	if query.Limiter == "" {
		query.Limiter = l.config.Name
	}
	err = l.guard(func() error {
		keys, err = top.Read(ctx, l.session, top.Query(query))
		return err
	})
	return keys, err
}
