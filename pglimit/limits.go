package pglimit

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// Limits are what the table pglimit.limits says, for [Config].Limits of any number of Limiters: rules for all
// keys of a limiter, for those that begin with a prefix, or for one, which are changed while services run.
//
// The table is read in the background, with one short call a second, while a Limiter uses it; all of it at once, if
// anything has changed. A call begins a second after the one before at the latest and gets a second for its answer, so
// a change holds in all processes within two seconds. While it cannot be read, what was read last holds, and rules
// expire all the same. Until it was read for the first time, requests wait, for up to Config.Timeout, and then fail
// with [ErrNoLimits], so that OnError answers them: never by a limit that the table may have lowered.
type Limits struct{ table *limits.Table }

// LimitsConfig of [LimitsFrom]. The zero value of a field means its default.
type LimitsConfig struct {
	// Every is how often the table is read, or up to a fifth sooner. From 10 ms. Zero: a second.
	Every time.Duration

	// CountInstances counts the live instances of each Limiter that uses these Limits, in all processes, so that
	// [FailLocal] takes its share by their number. One that starts is counted after some three seconds; one that is
	// closed no longer after one, and one that crashed after six. Every must be a second at most. It needs the right
	// to write the table pglimit.instances.
	CountInstances bool

	// Logger hears when the table cannot be read, and when it can again. Nil: nothing is logged.
	Logger *slog.Logger
}

// ErrNoLimits: the table pglimit.limits was not read yet, see [Limits]. It is an [ErrUnavailable], unless
// the table is missing or may not be read, the login or a setting is refused, or a pooler mixes up prepared statements.
var ErrNoLimits = limits.ErrNotRead

// LimitsFrom reads the table with connections of the pool: a *pgxpool.Pool. It does not connect before a
// Limiter uses it.
func LimitsFrom(pool Pool, config LimitsConfig) *Limits {
	if isNil(pool) {
		return &Limits{limits.NewTable(nil, limits.Config(config))}
	}
	return &Limits{limits.NewTable(postgres.OnPool(pool), limits.Config(config))}
}

// LimitsFromSQL is [LimitsFrom] on a *sql.DB: see [NewSQL].
func LimitsFromSQL(db *sql.DB, config LimitsConfig) *Limits {
	if db == nil {
		return &Limits{limits.NewTable(nil, limits.Config(config))}
	}
	return &Limits{limits.NewTable(postgres.OnSQLDB(db), limits.Config(config))}
}

// FixedLimits are these rules, which never change: for tests.
func FixedLimits(rules ...LimitRule) *Limits { return &Limits{limits.Fixed(rules)} }

func (l *Limits) validate() error {
	if l == nil {
		return nil
	}
	if err := l.table.Validate(); err != nil {
		return &ConfigError{"Limits", err}
	}
	return nil
}

// enter is the stage of a Limiter that follows the table. Nil: there is no table.
func (l *Limits) enter(limiter string, strategy Strategy, changed func()) *limits.Stage {
	if l == nil {
		return nil
	}
	return l.table.Enter(limiter, strategy, changed)
}

// Await waits until the table was read for the first time, which begins with the first Limiter that uses it. If ctx
// ends before, the error is [ErrNoLimits].
func (l *Limits) Await(ctx context.Context) error { return l.table.Await(ctx) }

// LimitsStatus is how the reading of the table goes.
type LimitsStatus struct {
	Read bool // it was read, once at least

	// Version grows with every change. Zero: the table was never changed, or not read yet.
	Version int64
	Rules   int           // that are enabled and have not expired
	Age     time.Duration // since it was read, or, if it never was, since [LimitsFrom]
	Err     error         // of the last try

	// Failing are the rules that fail each request for which they hold, sorted by row: those that cannot be read, and
	// those that could not be kept in the last minute, because the strategy has no such limits or Postgres does not
	// know the time zone.
	Failing []*RuleError
}

// Status of the reading.
func (l *Limits) Status() LimitsStatus { return LimitsStatus(l.table.Status()) }

// Limiters returns the names of those that have rules, sorted. Nil: there are none, or the table was not read yet. All
// callers get the same slice: do not change it.
func (l *Limits) Limiters() []string { return l.table.Limiters() }

// Explain returns the rules that hold for a request for the key, the one that decides and the one that is
// observed, nil if there is none. own says that the request has a limit of its own.
func (l *Limits) Explain(limiter, key string, own bool) (live, observed *LimitRule) {
	return l.table.Explain(limiter, key, own)
}
