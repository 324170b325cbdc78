package semaphore

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/internal/call"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// endIdle lets Postgres end the transaction if this process is silent for that many milliseconds: other calls wait for
// its locks.
const endIdle = "select pg_catalog.set_config('idle_in_transaction_session_timeout', $1::bigint::text, true)"

// acquireIf acquires a permit in a transaction in which take returns nil. The permit is nil if there is no place.
func (s *Semaphore) acquireIf(ctx context.Context, key string, weight int64, take func(context.Context, rate.Session) error) (*Permit, error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	defer s.work.Done()
	timed, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	t := transaction{semaphore: s, key: key, holder: s.newHolder(), weight: weight, take: take}
	err := call.Again(timed, s.session, 5, func() error {
		return s.session.OneConnection(timed, func(conn rate.Session) error { return t.run(timed, conn) })
	})
	switch {
	case err == nil && t.acquired:
		return s.newPermit(ctx, key, weight, t.token, t.holder, t.sent), nil
	case t.committing:
		limited, cancel := s.limited(ctx)
		defer cancel()
		_, _ = s.release(limited, key, t.holder)
	}
	if t.refused {
		return nil, err // as take has it
	}
	return nil, s.explain(err)
}

// transaction acquires a permit and runs take.
type transaction struct {
	semaphore   *Semaphore
	key, holder string
	weight      int64
	take        func(context.Context, rate.Session) error

	sent       time.Time
	acquired   bool
	token      int64
	refused    bool // by take
	committing bool // the commit was sent, and its outcome may be unknown
}

// run always ends the transaction. Everything but the commit ends with ctx, when the caller leaves.
func (t *transaction) run(ctx context.Context, conn rate.Session) (err error) {
	s, b := t.semaphore, call.BlockOn(conn)
	t.refused, t.committing = false, false
	defer func() {
		if !t.committing { // also if take panics
			b.Abandon(ctx)
		}
	}()
	t.sent = time.Now()
	done, err := conn.Pipeline(ctx, rate.Statement{SQL: b.Open},
		rate.Statement{SQL: endIdle, Args: []any{max(1, s.config.Timeout.Milliseconds())}},
		rate.Statement{SQL: acquireSQL, Args: s.acquireArgs(t.key, t.weight, t.holder), Into: []any{&t.acquired, &t.token, new(int64)}})
	b.Opened = done > 0
	if err != nil || !t.acquired {
		return err
	}
	if err := t.take(ctx, conn); err != nil {
		t.refused = true
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := s.limited(ctx)
	defer cancel()
	t.committing = true
	// The select fails if take ignored an error that aborted the transaction. The commit alone would not report that.
	_, err = conn.Pipeline(limited, rate.Statement{SQL: "select"}, rate.Statement{SQL: b.Keep})
	return err
}
