package semaphore

import (
	"context"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
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
	err := postgres.Again(timed, s.session, 5, func() error {
		return postgres.Transact(timed, s.session, func(b *postgres.Block) error { return t.run(timed, b) })
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

// run acquires and takes. Everything but the commit ends with ctx, when the caller leaves.
func (t *transaction) run(ctx context.Context, b *postgres.Block) error {
	s := t.semaphore
	t.refused, t.committing = false, false
	t.sent = time.Now()
	_, err := b.Begin(ctx,
		rate.Statement{SQL: endIdle, Args: []any{max(1, s.config.Timeout.Milliseconds())}},
		rate.Statement{SQL: acquireSQL, Args: s.acquireArgs(t.key, t.weight, t.holder), Into: []any{&t.acquired, &t.token, new(int64)}})
	if err != nil || !t.acquired {
		return err
	}
	if err := t.take(ctx, b.Conn); err != nil {
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
	defer b.Doubt()
	return b.Keep(limited, rate.Statement{SQL: "select"})
}
