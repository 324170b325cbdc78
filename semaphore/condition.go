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
// Everything but the commit ends with ctx, when the caller leaves.
func (s *Semaphore) acquireIf(ctx context.Context, key string, weight int64, take func(context.Context, rate.Session) error) (*Permit, error) {
	if !s.begin() {
		return nil, ErrClosed
	}
	defer s.work.Done()
	timed, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var (
		holder     = s.newHolder()
		sent       time.Time
		acquired   bool
		token      int64
		refused    bool // by take
		committing bool // the commit was sent, and its outcome may be unknown
	)
	try := func(b *postgres.Transaction) error {
		refused, committing, sent = false, false, time.Now()
		_, err := b.Begin(timed,
			rate.Statement{SQL: endIdle, Args: []any{max(1, s.config.Timeout.Milliseconds())}},
			rate.Statement{SQL: acquireSQL, Args: s.acquireArgs(key, weight, holder), Into: []any{&acquired, &token, new(int64)}})
		if err != nil || !acquired {
			return err
		}
		if err := take(timed, b.Conn); err != nil {
			refused = true
			return err
		}
		if err := timed.Err(); err != nil {
			return err
		}
		limited, cancel := s.limited(timed)
		defer cancel()
		committing = true
		// The select fails if take ignored an error that aborted the transaction. The commit alone would not
		// report that.
		defer b.Doubt()
		return b.Keep(limited, rate.Statement{SQL: "select"})
	}
	err := postgres.Again(timed, s.session, 5, func() error { return postgres.Transact(timed, s.session, try) })
	switch {
	case err == nil && acquired:
		return s.newPermit(ctx, key, weight, token, holder, sent), nil
	case committing:
		limited, cancel := s.limited(ctx)
		defer cancel()
		_, _ = s.release(limited, key, holder)
	}
	if refused {
		return nil, err // as take has it
	}
	return nil, s.explain(err)
}
