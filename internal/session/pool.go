package session

import (
	"cmp"
	"context"
	"errors"
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
		p.stale.forget(p.stale.ages.Load(), func() { p.forget(context.Background()) })
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

// OneConnection calls f once more, on a fresh connection, if the first one was to blame and nothing was
// taken for certain.
func (p *pooled) OneConnection(ctx context.Context, f func(rate.Session) error) error {
	for again := true; ; again = false {
		age := p.stale.ages.Load()
		err := p.inPlace(ctx, f)
		var conn *connError
		if !errors.As(err, &conn) {
			return err
		}
		forgotten := p.stale.forget(age, func() { p.forget(ctx) })
		if !again || !forgotten || conn.taken || ctx.Err() != nil {
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

// pause is how long what a fresh connection met is believed: as long as callers would not ask the
// server again.
const pause = 200 * time.Millisecond

// forget the connections of that age, unless that was done, or a fresh connection has just met the same.
// It returns whether the next connection is a fresh one.
func (s *stale) forget(age int64, forget func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age == s.ages.Load() {
		if !s.last.IsZero() && time.Since(s.last) < pause {
			return false
		}
		forget()
		s.ages.Add(1)
		s.last = time.Now()
	}
	return true
}
