package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// connections is a pool, of pgx or of database/sql.
type connections interface {
	// use calls f with a free connection. The error is a connError if that is to blame.
	use(ctx context.Context, f func(rate.Session) error) error

	// forget closes all connections: those that are in use at once, or when they have failed.
	forget(ctx context.Context)

	// open is how many connections there are that nobody uses, or others.
	open() int

	// busy is how many connections there may be, if all of them are in use; else 0.
	busy() int

	// sign asks for a sign of life on a new connection, if it can. See Sign.
	sign(ctx context.Context) error
}

// pooled is a session that sends each call on a free connection.
type pooled struct {
	connections
	places places
	stale  stale
	used   atomic.Int64 // connections
}

// works says that there are connections.
func (p *pooled) works() bool { return p.used.Load() > 0 || p.open() > 0 }

// Sign asks the server of a session for a sign of life. It returns nil if Postgres answers and could
// write, or says what somebody has to set right, which calls will hear too.
func Sign(ctx context.Context, session rate.Session) error {
	p, ok := session.(*pooled)
	if !ok {
		_, err := session.Exec(ctx, "select 1")
		return err
	}
	err := p.sign(ctx)
	if isAnswer(err) || isFull(err) && p.works() { // with those it has
		return nil
	}
	return err
}

// Recovered says that the server of the session answers again. What is left of the time before is
// forgotten, and calls begin slowly: to connect is a lot of work for a server.
func Recovered(session rate.Session) {
	if p, ok := session.(*pooled); ok {
		p.places.startSlowly()
		p.stale.forget(p.stale.ages.Load(), 0, func() { p.forget(context.Background()) })
	}
}

// BusyConns is how many connections the pool of the session may have, if all of them are in use.
// Else, and if it is no pool, it is zero.
func BusyConns(session rate.Session) int {
	if p, ok := session.(*pooled); ok {
		return p.busy()
	}
	return 0
}

func (*pooled) Autocommits() bool { return true }

func (p *pooled) Exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = p.OneConnection(ctx, func(conn rate.Session) error {
		rows, err = conn.Exec(ctx, sql, args...)
		return err
	})
	return rows, err
}

func (p *pooled) Row(ctx context.Context, sql string, args []any, into ...any) error {
	return p.OneConnection(ctx, func(conn rate.Session) error { return conn.Row(ctx, sql, args, into...) })
}

func (p *pooled) Pipeline(ctx context.Context, statements ...rate.Statement) (done int, err error) {
	err = p.OneConnection(ctx, func(conn rate.Session) error {
		done, err = conn.Pipeline(ctx, statements...)
		return err
	})
	return done, err
}

// maxTries is how many connections a call meets at most that are to blame. The second one is fresh, unless it
// is one of database/sql's.
const maxTries = 4

// OneConnection calls f again, on a fresh connection, if the one before was to blame and nothing was taken
// for certain.
func (p *pooled) OneConnection(ctx context.Context, f func(rate.Session) error) error {
	for tries := 1; ; tries++ {
		age := p.stale.ages.Load()
		err := p.inPlace(ctx, f)
		var conn *connError
		if !errors.As(err, &conn) {
			return err
		}
		wait := time.Duration(0)
		if conn.readOnly { // it costs a connection each time to see that a server is
			wait = pause
		}
		forgotten := p.stale.forget(age, wait, func() { p.forget(ctx) })
		if tries == maxTries || !forgotten || conn.taken || ctx.Err() != nil {
			return err
		}
	}
}

// inPlace calls f with a connection. If the server has no room for another one, it waits for one of
// those that there are.
func (p *pooled) inPlace(ctx context.Context, f func(rate.Session) error) error {
	if err := p.places.enter(ctx); err != nil {
		return err
	}
	for {
		reached := false
		err := p.use(ctx, func(conn rate.Session) error {
			reached = true
			p.used.Add(1)
			defer p.used.Add(-1)
			return f(conn)
		})
		if reached || !isFull(err) {
			p.places.leave(reached && err == nil)
			return err
		}
		if waited, ended := p.places.wait(ctx, p.works()); !waited {
			return cmp.Or(ended, err)
		}
	}
}

// stale remembers when connections were forgotten: what a call then still meets on an older one says
// nothing of a fresh one.
type stale struct {
	ages atomic.Int64 // how often they were forgotten
	mu   sync.Mutex
	last time.Time // when
}

// pause is the time between attempts to find out whether the server has room again, or can write again.
const pause = 200 * time.Millisecond

// forget the connections of that age, unless that was done since, or others were within the wait.
// It returns whether the next connection is a fresh one.
func (s *stale) forget(age int64, wait time.Duration, forget func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age == s.ages.Load() {
		if time.Since(s.last) < wait {
			return false
		}
		forget()
		s.ages.Add(1)
		s.last = time.Now()
	}
	return true
}

// ErrSharded is the error of a call about several keys on a session that is not marked as Sharded, where it should be.
var ErrSharded = fmt.Errorf("%w: Citus distributes the tables: ask for each key by itself", rate.ErrNothingTaken)

// sharded is a session where the tables are distributed.
type sharded struct{ rate.Session }

// Sharded marks a session where Citus distributes the tables: a call there must be about keys of one shard.
func Sharded(s rate.Session) rate.Session { return sharded{s} }

// IsSharded says that the session is marked so.
func IsSharded(s rate.Session) bool {
	_, is := s.(sharded)
	return is
}
