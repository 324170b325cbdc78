package pglimit

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// Limits are what the table pglimit.limits says, for [Config].Limits of any number of Limiters: rules for all
// keys of a limiter, for those that begin with a prefix, or for one, which are changed while services run.
//
// The table is read in the background, with one short call a second, while a Limiter uses it; all of it at once, if
// anything has changed. A call begins a second after the one before at the latest and gets a second for its answer, so a change
// holds in all processes within two seconds. While it cannot be read, what was
// read last holds, and rules expire all the same. Until it was read for the first time, requests wait, for up to Config.Timeout, and then fail
// with [ErrNoLimits], so that OnError answers them: never by a limit that the table may have lowered.
type Limits struct {
	session Session
	every   time.Duration
	logger  *slog.Logger

	set  atomic.Pointer[limits.Set] // nil: not read yet
	read atomic.Int64               // when it was read, since the start; 0: never
	why  atomic.Pointer[error]      // the last try failed

	count     bool          // live instances
	cannotSay atomic.Bool   // that they live, because of a right, or the like: an instance has the share that is configured
	tried     atomic.Int64  // when the last try to say so began, since the start
	sayNext   time.Duration // not before that, since the start
	heard     int64         // the turn of the answer to the last try; 0: there was none

	start  time.Time
	loaded chan struct{} // closed when there is a set

	failing struct {
		mu sync.Mutex
		at map[*LimitRule]failing // in the last minute, at least
	}

	mu      sync.Mutex
	users   map[*Limiter]*instance
	stop    context.CancelFunc
	stopped chan struct{}
}

// LimitsConfig of [LimitsFrom]. The zero value of a field means its default.
type LimitsConfig struct {
	// Every is how often the table is read, or up to a fifth sooner. From 10 ms. Zero: a second.
	Every time.Duration

	// CountInstances counts the live instances of each Limiter that uses these Limits, in all processes, so that [FailLocal]
	// takes its share by their number. One that starts is counted after some three seconds; one that is closed no longer
	// after one, and one that crashed after six. Every must be a second at most. It needs the right to write the table pglimit.instances.
	CountInstances bool

	// Logger hears when the table cannot be read, and when it can again. Nil: nothing is logged.
	Logger *slog.Logger
}

const (
	defaultLimitsEvery = time.Second
	minLimitsEvery     = 10 * time.Millisecond

	foreverDenied = time.Hour // the RetryAfter of a key that a rule denies without an end
)

// ErrNoLimits: the table pglimit.limits was not read yet, see [Limits]. It is an [ErrUnavailable], unless
// the table is missing or may not be read, or a pooler mixes up prepared statements.
var ErrNoLimits = errors.New("pglimit: the table pglimit.limits could not be read yet")

// LimitsFrom reads the table with connections of the pool: a *pgxpool.Pool. It does not connect before a
// Limiter uses it.
func LimitsFrom(pool Pool, config LimitsConfig) *Limits {
	if isNil(pool) {
		return newLimits(nil, config)
	}
	return newLimits(postgres.OnPool(pool), config)
}

// LimitsFromSQL is [LimitsFrom] on a *sql.DB: see [NewSQL].
func LimitsFromSQL(db *sql.DB, config LimitsConfig) *Limits {
	if db == nil {
		return newLimits(nil, config)
	}
	return newLimits(postgres.OnSQLDB(db), config)
}

// FixedLimits are these rules, which never change: for tests.
func FixedLimits(rules ...LimitRule) *Limits {
	l := newLimits(nil, LimitsConfig{})
	l.set.Store(limits.New(nil, slices.Clone(rules)))
	close(l.loaded)
	return l
}

// failing is a rule that fails its requests.
type failing struct {
	err      *RuleError
	at, told time.Time
}

// failingFor is how long a rule that has failed a request is told of, and how often it is logged.
const failingFor = time.Minute

// fails notes that a request fails because of the rule, and returns its error.
func (l *Limits) fails(r *LimitRule, why error) error {
	err, now := &RuleError{Rule: r, Err: why}, time.Now()
	l.failing.mu.Lock()
	of := l.failing.at[r]
	due := of.told.IsZero() || now.Sub(of.told) >= failingFor
	if due {
		of.told = now
		maps.DeleteFunc(l.failing.at, func(_ *LimitRule, f failing) bool { return now.Sub(f.at) >= failingFor })
	}
	if l.failing.at == nil {
		l.failing.at = make(map[*LimitRule]failing)
	}
	of.err, of.at = err, now
	l.failing.at[r] = of
	l.failing.mu.Unlock()
	if due && l.logger != nil {
		l.logger.Error("pglimit: a rule fails its requests: correct it, or disable or delete it",
			slog.Int64("row", r.ID), slog.String("limiter", cmp.Or(r.Limiter, "all")), slog.String("error", err.Error()))
	}
	return err
}

func newLimits(s Session, config LimitsConfig) *Limits {
	return &Limits{
		session: s, every: max(cmp.Or(config.Every, defaultLimitsEvery), minLimitsEvery), logger: config.Logger, count: config.CountInstances,
		start: time.Now(), loaded: make(chan struct{}), users: make(map[*Limiter]*instance),
	}
}

func (l *Limits) validate() error {
	if l != nil && l.session == nil && l.set.Load() == nil {
		return &ConfigError{"Limits", errors.New("has no pool: LimitsFrom needs one, such as a *pgxpool.Pool")}
	}
	if l != nil && l.count && l.every > longestCountEvery {
		return &ConfigError{"Limits", fmt.Errorf("is read every %v: with CountInstances it must be every %v at most", l.every, longestCountEvery)}
	}
	return nil
}

// enter begins to read the table, for the first of the users, and to say that the user follows it. Each set goes to its useRules,
// before others see it. It returns the instance as which the user is counted, or nil.
func (l *Limits) enter(user *Limiter) (of *instance) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != nil {
		l.users[user] = &instance{limits: l, limiter: user.config.Name, id: rand.Text()}
	} else {
		l.users[user] = nil
	}
	if l.count {
		of = l.users[user]
	}
	if set := l.set.Load(); set != nil {
		user.useRules(set)
	}
	if l.session == nil || l.stop != nil {
		return of
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop, l.stopped = stop, make(chan struct{})
	go l.poll(ctx, l.stopped)
	return of
}

// leave ends the reading with the last of the users.
func (l *Limits) leave(ctx context.Context, user *Limiter) {
	if l == nil {
		return
	}
	l.mu.Lock()
	of := l.users[user]
	delete(l.users, user)
	stop, stopped := l.stop, l.stopped
	if len(l.users) > 0 {
		stop = nil
	} else if l.stop = nil; stop != nil { // what is not read any more holds no longer
		l.set.Store(nil)
		l.loaded = make(chan struct{})
	}
	l.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
	of.leave(ctx)
}

func (l *Limits) poll(ctx context.Context, stopped chan<- struct{}) {
	defer close(stopped)
	counting := make(chan struct{}, 1)
	defer func() { counting <- struct{}{} }()
	failing := false
	for {
		began := time.Now()
		err := l.readOnce(ctx)
		select {
		case counting <- struct{}{}: // beside the pause: a change must not be seen later by as long as this takes
			go func() {
				l.sayOnce(ctx)
				<-counting
			}()
		default:
		}
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			l.log(ctx, err)
		}
		if set := l.set.Load(); failing && set != nil {
			if left := set.Expire(); left != nil {
				l.swap(left)
			}
		}
		pause := time.Duration(float64(l.every) * (0.8 + 0.2*mathrand.Float64())) // not all processes at once
		if err == nil {
			pause -= time.Since(began) // or a change would be seen later by as long as an answer takes
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// readOnce asks for what has changed.
func (l *Limits) readOnce(ctx context.Context) (err error) {
	left := ctx
	ctx, cancel := context.WithTimeout(ctx, max(l.every, time.Second))
	defer cancel()
	before, known := l.set.Load(), ""
	if before != nil {
		known = before.Stamp
	}
	var answer string
	if err = l.session.Row(ctx, "select pglimit.limits_since($1::text)", []any{known}, &answer); err == nil {
		var set *limits.Set
		if set, err = limits.Parse(answer, before); err == nil {
			if known != "" && set.Stamp == known {
				l.redate(set)
			} else {
				l.swap(set)
			}
		}
	}
	if left.Err() != nil { // the last Limiter has: what that does to the call says nothing of Postgres
		return err
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
	if len(l.users) == 0 { // the last one has left meanwhile
		return
	}
	for user := range l.users {
		user.useRules(set)
	}
	before := l.set.Swap(set)
	if before == nil {
		close(l.loaded)
	}
	for _, r := range set.Unreadable {
		if !before.Holds(r) {
			_ = l.fails(r, errors.New(r.Unreadable))
		}
	}
	if l.logger != nil {
		l.logOff(before, set, "pglimit: switched off, everything is granted")
		l.logOff(set, before, "pglimit: no longer switched off")
	}
}

// redate takes the same set with a newer clock.
func (l *Limits) redate(set *limits.Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.users) > 0 {
		l.set.Store(set)
	}
}

// logOff says which rules of the new set that switch off are not in the old one.
func (l *Limits) logOff(before, set *limits.Set, what string) {
	for r := range set.All() {
		if r.Action == Off && !before.Has(r) {
			l.logger.Warn(what, slog.String("limiter", cmp.Or(r.Limiter, "all")), slog.Int64("row", r.ID), slog.String("note", r.Note))
		}
	}
}

func (l *Limits) log(ctx context.Context, err error) {
	set := l.set.Load()
	switch {
	case l.logger == nil:
	case err != nil:
		what := "pglimit: the limits cannot be read, and requests have to wait for them"
		if set != nil {
			what = "pglimit: the limits cannot be read, those of the last time hold"
		}
		l.logger.LogAttrs(ctx, slog.LevelError, what, slog.String("error", err.Error()))
	case set != nil: // else the last Limiter is leaving
		l.logger.LogAttrs(ctx, slog.LevelInfo, "pglimit: the limits were read", slog.Int64("version", set.Version), slog.Int("rules", set.Rules))
	}
}

// Await waits until the table was read for the first time, which begins with the first Limiter that uses it. If ctx ends
// before, the error is [ErrNoLimits].
func (l *Limits) Await(ctx context.Context) error {
	if l.set.Load() != nil {
		return nil
	}
	l.mu.Lock()
	loaded := l.loaded
	l.mu.Unlock()
	select {
	case <-loaded:
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
	if cure := postgres.Setting(err); cure != "" {
		return fmt.Errorf("%w: %s: %w", ErrSetting, cure, err)
	} else if !errors.As(err, &pg) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	switch pg.Code {
	case "42883", "42P01", "3F000": // no such function, table, schema
		return fmt.Errorf("%w: run \"pglimit migrate up\" or migrations.Up: %w", ErrNotMigrated, err)
	case "26000", "42P05": // no such prepared statement, or there is one
		return fmt.Errorf("%w: give this pool default_query_exec_mode=exec: %w", ErrPooler, err)
	case "42501":
		return fmt.Errorf("%w: \"pglimit migrate grants ROLE\" prints what it needs: %w", ErrPermission, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// LimitsStatus is how the reading of the table goes.
type LimitsStatus struct {
	Read bool // it was read, once at least

	// Version grows with every change. Zero: the table was never changed, or not read yet.
	Version int64
	Rules   int           // that are enabled and have not expired
	Age     time.Duration // since it was read, or, if it never was, since [LimitsFrom]
	Err     error         // of the last try

	// Failing are the rules that fail each request for which they hold, sorted by row: those that cannot be read, and those that could
	// not be kept in the last minute, because the strategy has no such limits or Postgres does not know the time zone.
	Failing []*RuleError
}

// Status of the reading.
func (l *Limits) Status() (s LimitsStatus) {
	if set := l.set.Load(); set != nil {
		s.Read, s.Version, s.Rules = true, set.Version, set.Rules
		for _, r := range set.Unreadable {
			s.Failing = append(s.Failing, &RuleError{Rule: r, Err: errors.New(r.Unreadable)})
		}
		l.failing.mu.Lock()
		for r, f := range l.failing.at {
			if r.Unreadable == "" && set.Holds(r) && time.Since(f.at) < failingFor {
				s.Failing = append(s.Failing, f.err)
			}
		}
		l.failing.mu.Unlock()
		slices.SortFunc(s.Failing, func(a, b *RuleError) int { return cmp.Compare(a.Rule.ID, b.Rule.ID) })
	}
	if l.session != nil {
		s.Age = time.Since(l.start) - time.Duration(l.read.Load())
	}
	if why := l.why.Load(); why != nil {
		s.Err = *why
	}
	return s
}

// Limiters returns the names of those that have rules, sorted. Nil: there are none, or the table was not read yet. All callers
// get the same slice: do not change it.
func (l *Limits) Limiters() []string {
	if set := l.set.Load(); set != nil {
		return set.Limiters()
	}
	return nil
}

// Explain returns the rules that hold for a request for the key, the one that decides and the one that is
// observed, nil if there is none. own says that the request has a limit of its own.
func (l *Limits) Explain(limiter, key string, own bool) (live, observed *LimitRule) {
	if set := l.set.Load(); set != nil {
		return set.Find(limiter, key, own)
	}
	return nil, nil
}

// now is the database's clock. After the last Limiter was closed it is this process's.
func (l *Limits) now() time.Time {
	if set := l.set.Load(); set != nil {
		return set.Now()
	}
	return time.Now().UTC()
}

func (l *Limits) denial(r *LimitRule) Decision {
	d := Decision{At: l.now(), Source: FromRule, RetryAfter: foreverDenied}
	if !r.Expires.IsZero() {
		d.RetryAfter = max(r.Expires.Sub(d.At), 0) + l.every
	}
	d.ResetAfter = d.RetryAfter
	return d
}

func (l *Limits) grant(r *Request) Decision {
	return Decision{Allowed: true, Granted: r.Tokens, Remaining: r.Limit.Burst, At: l.now(), Source: FromRule}
}

// rules of a set, as a Limiter uses them.
type rules struct {
	set     *limits.Set
	name    string // of the Limiter
	own     *limits.Rules
	checked sync.Map // by *LimitRule: whether the strategy can keep it, once somebody asked
}

// find the rules for a key: mostly they are asked for the Limiter's own.
func (k *rules) find(limiter, key string, own bool) (live, observed *LimitRule) {
	if limiter == k.name {
		return k.set.FindIn(k.own, key, own)
	}
	return k.set.Find(limiter, key, own)
}

// unfit is why the strategy cannot keep the rule, or nil.
func (k *rules) unfit(strategy Strategy, r *LimitRule) error {
	known, ok := k.checked.Load(r)
	if !ok {
		err := checkLimit(strategy, r.Limit)
		known, _ = k.checked.LoadOrStore(r, &err)
	}
	return *known.(*error)
}
