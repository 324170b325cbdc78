package limits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Table reads the table pglimit.limits in the background while a [Stage] uses it.
type Table struct {
	session rate.Session
	every   time.Duration
	logger  *slog.Logger

	set  atomic.Pointer[Set]   // nil: not read yet
	read atomic.Int64          // when it was read, since the start; 0: never
	why  atomic.Pointer[error] // the last try failed

	count     bool          // live instances
	cannotSay atomic.Bool   // that they live, because of a right, or the like: an instance has the share that is configured
	tried     atomic.Int64  // when the last try to say so began, since the start
	sayNext   time.Duration // not before that, since the start
	heard     int64         // the turn of the answer to the last try; 0: there was none

	start  time.Time
	loaded chan struct{} // closed when there is a set

	failing struct {
		mu sync.Mutex
		at map[*rate.LimitRule]failing // in the last minute, at least
	}

	mu      sync.Mutex
	users   map[*Stage]bool
	stop    context.CancelFunc
	stopped chan struct{}
}

// Config of a [Table]: see LimitsConfig of package pglimit.
type Config struct {
	Every          time.Duration
	CountInstances bool
	Logger         *slog.Logger
}

const (
	defaultEvery = time.Second
	minEvery     = 10 * time.Millisecond
)

// ErrNotRead is ErrNoLimits of package pglimit.
var ErrNotRead = errors.New("pglimit: the table pglimit.limits could not be read yet")

// NewTable does not connect before a Stage uses it. A nil session cannot be used.
func NewTable(s rate.Session, config Config) *Table {
	return &Table{
		session: s, every: max(cmp.Or(config.Every, defaultEvery), minEvery), logger: config.Logger,
		count: config.CountInstances, start: time.Now(), loaded: make(chan struct{}), users: make(map[*Stage]bool),
	}
}

// Fixed is a table of these rules, which never change.
func Fixed(rules []rate.LimitRule) *Table {
	t := NewTable(nil, Config{})
	t.set.Store(New(nil, slices.Clone(rules)))
	close(t.loaded)
	return t
}

// Validate returns why the table cannot be used, or nil.
func (t *Table) Validate() error {
	switch {
	case t == nil, t.session == nil && t.set.Load() == nil:
		return errors.New("has no pool: LimitsFrom needs one, such as a *pgxpool.Pool")
	case t.count && t.every > longestCountEvery:
		return fmt.Errorf("is read every %v: with CountInstances it must be every %v at most", t.every, longestCountEvery)
	}
	return nil
}

// failing is a rule that fails its requests.
type failing struct {
	err      *rate.RuleError
	at, told time.Time
}

// failingFor is how long a rule that has failed a request is told of, and how often it is logged.
const failingFor = time.Minute

// fails notes that a request fails because of the rule, and returns its error.
func (t *Table) fails(r *rate.LimitRule, why error) error {
	err, now := &rate.RuleError{Rule: r, Err: why}, time.Now()
	t.failing.mu.Lock()
	of := t.failing.at[r]
	due := of.told.IsZero() || now.Sub(of.told) >= failingFor
	if due {
		of.told = now
		maps.DeleteFunc(t.failing.at, func(_ *rate.LimitRule, f failing) bool { return now.Sub(f.at) >= failingFor })
	}
	if t.failing.at == nil {
		t.failing.at = make(map[*rate.LimitRule]failing)
	}
	of.err, of.at = err, now
	t.failing.at[r] = of
	t.failing.mu.Unlock()
	if due && t.logger != nil {
		t.logger.Error("pglimit: a rule fails its requests: correct it, or disable or delete it",
			slog.Int64("row", r.ID), slog.String("limiter", cmp.Or(r.Limiter, "all")), slog.String("error", err.Error()))
	}
	return err
}

// enter begins to read the table, for the first of the users, and to say that the user follows it. Each set goes to the
// users before others see it.
func (t *Table) enter(user *Stage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users[user] = true
	if set := t.set.Load(); set != nil {
		user.use(set)
	}
	if t.session == nil || t.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop, t.stopped = stop, make(chan struct{})
	go t.poll(ctx, t.stopped)
}

// leave ends the reading with the last of the users.
func (t *Table) leave(user *Stage) {
	t.mu.Lock()
	delete(t.users, user)
	stop, stopped := t.stop, t.stopped
	if len(t.users) > 0 {
		stop = nil
	} else if t.stop = nil; stop != nil { // what is not read any more holds no longer
		t.set.Store(nil)
		t.loaded = make(chan struct{})
	}
	t.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
	}
}

func (t *Table) poll(ctx context.Context, stopped chan<- struct{}) {
	defer close(stopped)
	counting := make(chan struct{}, 1)
	defer func() { counting <- struct{}{} }()
	failing := false
	for {
		began := time.Now()
		err := t.readOnce(ctx)
		select {
		case counting <- struct{}{}: // beside the pause: a change must not be seen later by as long as this takes
			go func() {
				t.sayOnce(ctx)
				<-counting
			}()
		default:
		}
		if ctx.Err() != nil {
			return
		}
		if failed := err != nil; failed != failing {
			failing = failed
			t.log(ctx, err)
		}
		if set := t.set.Load(); failing && set != nil {
			if left := set.Expire(); left != nil {
				t.swap(left)
			}
		}
		pause := time.Duration(float64(t.every) * (0.8 + 0.2*mathrand.Float64())) // not all processes at once
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
func (t *Table) readOnce(ctx context.Context) (err error) {
	left := ctx
	ctx, cancel := context.WithTimeout(ctx, max(t.every, time.Second))
	defer cancel()
	before, known := t.set.Load(), ""
	if before != nil {
		known = before.Stamp
	}
	var answer string
	if err = t.session.Row(ctx, "select pglimit.limits_since($1::text)", []any{known}, &answer); err == nil {
		var set *Set
		if set, err = Parse(answer, before); err == nil {
			if known != "" && set.Stamp == known {
				t.redate(set)
			} else {
				t.swap(set)
			}
		}
	}
	if left.Err() != nil { // the last user has: what that does to the call says nothing of Postgres
		return err
	}
	if err != nil {
		err = explain(err)
		t.why.Store(&err)
		return err
	}
	t.why.Store(nil)
	t.read.Store(int64(time.Since(t.start)))
	return nil
}

func (t *Table) swap(set *Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.users) == 0 { // the last one has left meanwhile
		return
	}
	for user := range t.users {
		user.use(set)
	}
	before := t.set.Swap(set)
	if before == nil {
		close(t.loaded)
	}
	for _, r := range set.Unreadable {
		if !before.Holds(r) {
			_ = t.fails(r, errors.New(r.Unreadable))
		}
	}
	if t.logger != nil {
		t.logOff(before, set, "pglimit: switched off, everything is granted")
		t.logOff(set, before, "pglimit: no longer switched off")
	}
}

// redate takes the same set with a newer clock.
func (t *Table) redate(set *Set) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.users) > 0 {
		t.set.Store(set)
	}
}

// logOff says which rules of the new set that switch off are not in the old one.
func (t *Table) logOff(before, set *Set, what string) {
	for r := range set.All() {
		if r.Action == rate.ActionOff && !before.Has(r) {
			t.logger.Warn(what, slog.String("limiter", cmp.Or(r.Limiter, "all")), slog.Int64("row", r.ID), slog.String("note", r.Note))
		}
	}
}

func (t *Table) log(ctx context.Context, err error) {
	set := t.set.Load()
	switch {
	case t.logger == nil:
	case err != nil:
		what := "pglimit: the limits cannot be read, and requests have to wait for them"
		if set != nil {
			what = "pglimit: the limits cannot be read, those of the last time hold"
		}
		t.logger.LogAttrs(ctx, slog.LevelError, what, slog.String("error", err.Error()))
	case set != nil: // else the last user is leaving
		t.logger.LogAttrs(ctx, slog.LevelInfo, "pglimit: the limits were read", slog.Int64("version", set.Version), slog.Int("rules", set.Rules))
	}
}

// Await waits until the table was read for the first time, which begins with its first user. If ctx ends before, the
// error is [ErrNotRead].
func (t *Table) Await(ctx context.Context) error {
	if t.set.Load() != nil {
		return nil
	}
	t.mu.Lock()
	loaded := t.loaded
	t.mu.Unlock()
	select {
	case <-loaded:
		return nil
	case <-ctx.Done():
	}
	return t.unread()
}

// unread is why there are no limits yet.
func (t *Table) unread() error {
	if why := t.why.Load(); why != nil {
		return fmt.Errorf("%w: %w", ErrNotRead, *why)
	}
	return fmt.Errorf("%w: %w: no answer", ErrNotRead, rate.ErrUnavailable)
}

// explain says what the error means and what to do. Whatever else it is, the table is unavailable.
func explain(err error) error {
	explained := postgres.Explain(err)
	for _, lasts := range []error{rate.ErrNotMigrated, rate.ErrPermission, rate.ErrSetting, rate.ErrPooler} {
		if errors.Is(explained, lasts) {
			return explained
		}
	}
	return fmt.Errorf("%w: %w", rate.ErrUnavailable, err)
}

// Status is LimitsStatus of package pglimit.
type Status struct {
	Read    bool
	Version int64
	Rules   int
	Age     time.Duration
	Err     error
	Failing []*rate.RuleError
}

// Status of the reading.
func (t *Table) Status() (s Status) {
	if set := t.set.Load(); set != nil {
		s.Read, s.Version, s.Rules = true, set.Version, set.Rules
		for _, r := range set.Unreadable {
			s.Failing = append(s.Failing, &rate.RuleError{Rule: r, Err: errors.New(r.Unreadable)})
		}
		t.failing.mu.Lock()
		for r, f := range t.failing.at {
			if r.Unreadable == "" && set.Holds(r) && time.Since(f.at) < failingFor {
				s.Failing = append(s.Failing, f.err)
			}
		}
		t.failing.mu.Unlock()
		slices.SortFunc(s.Failing, func(a, b *rate.RuleError) int { return cmp.Compare(a.Rule.ID, b.Rule.ID) })
	}
	if t.session != nil {
		s.Age = time.Since(t.start) - time.Duration(t.read.Load())
	}
	if why := t.why.Load(); why != nil {
		s.Err = *why
	}
	return s
}

// Limiters returns the names of those that have rules, sorted. Nil: there are none, or the table was not read yet.
// All callers get the same slice: do not change it.
func (t *Table) Limiters() []string {
	if set := t.set.Load(); set != nil {
		return set.Limiters()
	}
	return nil
}

// Explain returns the rules that hold for a request for the key, the one that decides and the one that is
// observed, nil if there is none. own says that the request has a limit of its own.
func (t *Table) Explain(limiter, key string, own bool) (live, observed *rate.LimitRule) {
	if set := t.set.Load(); set != nil {
		return set.Find(limiter, key, own)
	}
	return nil, nil
}

// now is the database's clock. After the last user has left it is this process's.
func (t *Table) now() time.Time {
	if set := t.set.Load(); set != nil {
		return set.Now()
	}
	return time.Now().UTC()
}
