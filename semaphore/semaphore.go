package semaphore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	// ErrFull means that all places were taken for as long as the caller would wait (Config.MaxWait).
	ErrFull = errors.New("semaphore: all places are taken")

	// ErrLost means that the permit expired before it was released, so others may have the place.
	ErrLost = errors.New("semaphore: the permit is lost")

	// ErrReleased means that the permit was released. It is the cause of the end of its Context.
	ErrReleased = errors.New("semaphore: the permit was released")

	// ErrNotSet means that nothing says how many places the key has: Config.FromTable is set, the table pglimit.limits
	// has no rule for the key, and Config.Places is zero.
	ErrNotSet = errors.New("semaphore: the number of places is not set")

	// ErrClosed means that the Semaphore was closed.
	ErrClosed = errors.New("semaphore: it is closed")
)

// Semaphore has a number of places for each key, which all processes share. Make one with
// [New]. It is safe for concurrent use.
type Semaphore struct {
	session rate.Session
	config  Config

	prefix string // of the names of its holders; unique
	number atomic.Uint64

	ended context.Context    //nolint:containedctx // by Close
	end   context.CancelFunc //
	work  sync.WaitGroup     // calls, including those whose caller has left
	mu    sync.Mutex         // guards lines; no work.Add comes after end
	lines lines

	held, waiting, acquired, refused, lost atomic.Int64
}

// DB is an application's pool: a *pgxpool.Pool, or a *sql.DB with the driver github.com/jackc/pgx/v5/stdlib or
// github.com/lib/pq. If your type embeds one, as sqlx.DB does, pass its field DB.
type DB interface{ postgres.DB }

// New makes a [Semaphore]. It does not call Postgres yet.
func New[D DB](db D, config Config) (*Semaphore, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	session := postgres.On(db)
	if session == nil {
		return nil, errors.New("semaphore: the pool is nil")
	}
	s := &Semaphore{
		session: session, config: config, lines: lines{},
		prefix: config.Holder + "/" + rand.Text()[:13] + "/",
	}
	s.ended, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Acquire waits for a place, in line behind earlier callers, and returns a permit for it. It is AcquireN with 1.
func (s *Semaphore) Acquire(ctx context.Context, key string) (*Permit, error) {
	return s.AcquireN(ctx, key, 1)
}

// AcquireN acquires a permit for weight places at once, at most Config.Places. It waits until ctx ends, or returns
// ErrFull after Config.MaxWait. Callers in this process are served in order of arrival, so nobody overtakes a caller
// that waits for many places. Between processes there is no order. With Config.FromTable, more places than the table
// has are an error.
//
// ctx is also the parent of [Permit.Context]: to bound the wait and not the work, set Config.MaxWait. An error other
// than ErrFull, ErrNotSet, ErrClosed and that of ctx means that Postgres did not answer. A caller that gives up leaves
// nothing behind: if it gets a place nevertheless, that is released.
func (s *Semaphore) AcquireN(ctx context.Context, key string, weight int64) (*Permit, error) {
	p, err := s.try(ctx, key, weight)
	if p == nil && (err == nil || outrun(err)) {
		return s.wait(ctx, key, weight)
	}
	return p, err
}

// TryAcquire is TryAcquireN with 1.
func (s *Semaphore) TryAcquire(ctx context.Context, key string) (p *Permit, ok bool, err error) {
	return s.TryAcquireN(ctx, key, 1)
}

// TryAcquireN acquires a permit if that many places are free now, and no caller in this process waits for the key.
// Otherwise ok is false.
func (s *Semaphore) TryAcquireN(ctx context.Context, key string, weight int64) (p *Permit, ok bool, err error) {
	p, err = s.try(ctx, key, weight)
	if p == nil && err == nil {
		s.refused.Add(1)
	}
	return p, p != nil, err
}

// TryAcquireIf is TryAcquireN with a condition: it calls take in the transaction that acquires the permit. If take
// returns an error, there is no permit, and the transaction is rolled back. So a permit and the tokens of limits are
// all or nothing:
//
//	permit, err := jobs.TryAcquireIf(ctx, tenant, 1, func(ctx context.Context, tx pglimit.Session) error {
//		d, err := limiter.On(tx).Allow(ctx, user) // or DoAll
//		if err == nil && !d.Allowed {
//			return errDenied
//		}
//		return err
//	})
//
// If there is no place, the error is ErrFull, and take is not called: no tokens are spent. An error of take is
// returned, and no place is held. If ctx or this process ends before the transaction commits, nothing is left. Another
// error of the commit means that Postgres did not answer: the place becomes free again, and whether tokens were spent
// is not known.
//
// take must use the database of the Semaphore. It may be called again, after a transaction that failed because others
// were faster. It should only decide, because meanwhile the rows of the key and of what it takes are locked. Postgres
// ends the transaction after a silence of Config.Timeout, even if this process is frozen. The call is three round
// trips, or six over database/sql.
func (s *Semaphore) TryAcquireIf(ctx context.Context, key string, weight int64, take func(ctx context.Context, tx rate.Session) error) (*Permit, error) {
	others, err := s.check(key, weight)
	if err != nil {
		return nil, err
	}
	var p *Permit
	if !others {
		p, err = s.acquireIf(ctx, key, weight, take)
	}
	if p == nil && err == nil {
		s.refused.Add(1)
		err = ErrFull
	}
	return p, err
}

// try returns nil if there is no place, or other callers wait for one.
func (s *Semaphore) try(ctx context.Context, key string, weight int64) (*Permit, error) {
	others, err := s.check(key, weight)
	if err != nil {
		return nil, err
	}
	if others {
		return nil, ctx.Err()
	}
	p, _, err := s.ask(ctx, key, weight)
	return p, err
}

// check checks the request. others: callers in this process wait for a place of the key.
func (s *Semaphore) check(key string, weight int64) (others bool, err error) {
	if err := rate.CheckKey(key); err != nil {
		return false, err
	}
	most := s.config.Places
	if s.config.FromTable {
		most = maxPlaces
	}
	if weight < 1 || weight > most {
		return false, fmt.Errorf("semaphore: the weight is %d: it must be at least 1, and at most %d, the number of places", weight, most)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, others = s.lines[key]
	return others, nil
}

// Close wakes waiting callers with ErrClosed, and waits until their calls have ended. Permits stay held, and are
// renewed, until they are released. The error is that of ctx.
func (s *Semaphore) Close(ctx context.Context) error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Config returns the Config of New with its defaults.
func (s *Semaphore) Config() Config { return s.config }

// Stats of a Semaphore, since New.
type Stats struct {
	Held, Waiting int64 // permits held and callers in line, now
	Acquired      int64 // permits
	Refused       int64 // calls that found no place: TryAcquire, and Acquire with ErrFull
	Lost          int64 // permits
}

// Stats reads the counters.
func (s *Semaphore) Stats() Stats {
	return Stats{Held: s.held.Load(), Waiting: s.waiting.Load(), Acquired: s.acquired.Load(), Refused: s.refused.Load(), Lost: s.lost.Load()}
}

// Holder is a permit that some process holds.
type Holder struct {
	Name           string // Config.Holder, and what tells its permits from one another
	Weight, Token  int64
	Since, Expires time.Time // by the database's clock; Expires unless it is renewed
}

// Peek lists who holds permits of the key, in any process, oldest first. It locks nothing.
func (s *Semaphore) Peek(ctx context.Context, key string) ([]Holder, error) {
	if err := rate.CheckKey(key); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var names []string
	var tokens, weights, since, expires []int64
	if err := s.row(ctx, holdersSQL, []any{s.config.Name, key}, &names, &tokens, &weights, &since, &expires); err != nil {
		return nil, err
	}
	holders := make([]Holder, len(names))
	for i := range names {
		holders[i] = Holder{Name: names[i], Weight: weights[i], Token: tokens[i], Since: time.Unix(0, since[i]), Expires: time.Unix(0, expires[i])}
	}
	return holders, nil
}
