package pglimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// Limits are what the table pglimit.limits says, for [Config].Limits of any number of Limiters: rules for all
// keys of a limiter, for those that begin with a prefix, or for one, which are changed while services run.
//
// The table is read in the background, with one short call a second, while a Limiter uses it; all of it at once, if
// anything has changed. So a change holds in all processes within two seconds. While it cannot be read, what was
// read last holds. Until it was read for the first time, requests wait, for up to Config.Timeout, and then fail
// with [ErrNoLimits], so that OnError answers them: never by a limit that the table may have lowered.
type Limits struct {
	session Session
	every   time.Duration
	logger  *slog.Logger

	set  atomic.Pointer[limits.Set] // nil: not read yet
	read atomic.Int64               // when it was read, since the start
	why  atomic.Pointer[error]      // the last try failed

	start  time.Time
	loaded chan struct{} // closed when there is a set

	mu      sync.Mutex
	users   map[*Limiter]bool
	stop    context.CancelFunc
	stopped chan struct{}
}

// LimitsConfig of [LimitsFrom]. The zero value of a field means its default.
type LimitsConfig struct {
	// Every is how often the table is read, give or take a tenth. From 10 ms. Zero: a second.
	Every time.Duration

	// Logger hears when the table cannot be read, and when it can again. Nil: nothing is logged.
	Logger *slog.Logger
}

const (
	defaultLimitsEvery = time.Second
	minLimitsEvery     = 10 * time.Millisecond
)

// ErrNoLimits: the table pglimit.limits was not read yet, see [Limits]. It is an [ErrUnavailable], unless
// the table is missing or may not be read.
var ErrNoLimits = errors.New("pglimit: the table pglimit.limits could not be read yet")

// LimitsFrom reads the table with connections of the pool: a *pgxpool.Pool. It does not connect before a
// Limiter uses it.
func LimitsFrom(pool Pool, config LimitsConfig) *Limits {
	if isNil(pool) {
		return newLimits(nil, config)
	}
	return newLimits(session.OnPool(pool), config)
}

// LimitsFromSQL is [LimitsFrom] on a *sql.DB: see [NewSQL].
func LimitsFromSQL(db SQLDB, config LimitsConfig) *Limits {
	if isNil(db) {
		return newLimits(nil, config)
	}
	return newLimits(session.OnSQLDB(db), config)
}

// FixedLimits are these rules, which never change: for tests.
func FixedLimits(rules ...LimitRule) *Limits {
	l := newLimits(nil, LimitsConfig{})
	l.set.Store(limits.New(nil, slices.Clone(rules)))
	close(l.loaded)
	return l
}

func newLimits(s Session, config LimitsConfig) *Limits {
	return &Limits{
		session: s, every: max(orDefault(config.Every, defaultLimitsEvery), minLimitsEvery), logger: config.Logger,
		start: time.Now(), loaded: make(chan struct{}), users: make(map[*Limiter]bool),
	}
}

func (l *Limits) validate() error {
	if l != nil && l.session == nil && l.set.Load() == nil {
		return &ConfigError{"Limits", errors.New("has no pool: LimitsFrom needs one, such as a *pgxpool.Pool")}
	}
	return nil
}

// enter begins to read the table, for the first of the Limiters that use it.
func (l *Limits) enter(user *Limiter) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users[user] = true
	if set := l.set.Load(); set != nil {
		user.checkRules(set)
	}
	if l.session == nil || l.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.stopped = stop, make(chan struct{})
	go l.poll(ctx, l.stopped)
}

// leave ends the reading with the last of the Limiters.
func (l *Limits) leave(user *Limiter) {
	if l == nil {
		return
	}
	l.mu.Lock()
	delete(l.users, user)
	stop, stopped := l.stop, l.stopped
	if len(l.users) > 0 {
		stop = nil
	} else {
		l.stop = nil
	}
	l.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
}

func (l *Limits) poll(ctx context.Context, stopped chan<- struct{}) {
	defer close(stopped)
	failing := false
	for {
		err := l.readOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			l.log(ctx, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(float64(l.every) * (0.9 + 0.2*rand.Float64()))): // not all processes at once
		}
	}
}

// readOnce asks for what has changed.
func (l *Limits) readOnce(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.every, defaultTimeout))
	defer cancel()
	before, known := l.set.Load(), ""
	if before != nil {
		known = before.Stamp
	}
	var answer *string
	if err = l.session.Row(ctx, "select pglimit.limits_since($1::text)", []any{known}, &answer); err == nil && answer != nil {
		var set *limits.Set
		if set, err = limits.Parse(*answer, before); err == nil {
			l.swap(set)
		}
	}
	if err != nil {
		err = explainLimits(err)
		l.why.Store(&err)
		return err
	}
	l.why.Store(nil)
	l.read.Store(int64(time.Since(l.start)))
	return nil
}

func (l *Limits) swap(set *limits.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for user := range l.users {
		user.checkRules(set)
	}
	if first := l.set.Swap(set) == nil; first {
		close(l.loaded)
	}
}

func (l *Limits) log(ctx context.Context, err error) {
	switch {
	case l.logger == nil:
	case err != nil:
		l.logger.LogAttrs(ctx, slog.LevelError, "pglimit: the limits cannot be read, those of the last time hold", slog.String("error", err.Error()))
	default:
		l.logger.LogAttrs(ctx, slog.LevelInfo, "pglimit: the limits were read", slog.Int64("version", l.set.Load().Version), slog.Int("rules", l.set.Load().Rules))
	}
}

// await waits until the table was read for the first time. The error is ErrNoLimits.
func (l *Limits) await(ctx context.Context, timeout time.Duration) error {
	if l == nil || l.set.Load() != nil {
		return nil
	}
	if timeout != NoTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	select {
	case <-l.loaded:
		return nil
	case <-ctx.Done():
	}
	return l.unread()
}

// unread is why there are no limits yet.
func (l *Limits) unread() error {
	if why := l.why.Load(); why != nil {
		return fmt.Errorf("%w: %w", ErrNoLimits, *why)
	}
	return fmt.Errorf("%w: %w: no answer", ErrNoLimits, ErrUnavailable)
}

// explainLimits says what the error means and what to do.
func explainLimits(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch pg.Code {
	case "42883", "42P01", "3F000": // no such function, table, schema
		return fmt.Errorf("%w: run \"pglimit migrate up\" or migrations.Up: %w", ErrNotMigrated, err)
	case "42501":
		return fmt.Errorf("%w: \"pglimit migrate grants ROLE\" prints what it needs: %w", ErrPermission, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// LimitsStatus is how the reading of the table goes.
type LimitsStatus struct {
	// Version grows with every change. Zero: the table was never changed, or not read yet.
	Version int64
	Rules   int           // that are enabled and have not expired
	Age     time.Duration // since it was read. Negative: it never was
	Err     error         // of the last try
}

// Status of the reading.
func (l *Limits) Status() LimitsStatus {
	s := LimitsStatus{Age: -1}
	if set := l.set.Load(); set != nil {
		s.Version, s.Rules = set.Version, set.Rules
		if l.session != nil {
			s.Age = time.Since(l.start) - time.Duration(l.read.Load())
		} else {
			s.Age = 0
		}
	}
	if why := l.why.Load(); why != nil {
		s.Err = *why
	}
	return s
}

// Explain returns the rules that hold for a request for the key, the one that decides and the one that is
// observed, nil if there is none. own says that the request has a limit of its own.
func (l *Limits) Explain(limiter, key string, own bool) (live, observed *LimitRule) {
	if set := l.set.Load(); set != nil {
		return set.Find(limiter, key, own)
	}
	return nil, nil
}
