package strategytest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// looksForDeadlocks is another pool, whose connections look whether they are in a deadlock
// sooner than an impatient call gives up, if the role may set that. Otherwise Postgres looks
// after a second, and sees those of calls that wait for so long.
func (s *suite) looksForDeadlocks() *pgxpool.Pool {
	s.Helper()
	config := s.pool.Config()
	before := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, "set deadlock_timeout = '4ms'")
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "42501" {
			return nil
		}
		return err
	}
	pool, err := pgxpool.NewWithConfig(s.Context(), config)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(pool.Close)
	return pool
}

// refused says of an error whether the test goes on: Postgres may refuse a call that takes
// from several buckets, or was late, which then took nothing. Not because of a deadlock.
func (s *suite) refused(err error) bool {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "40P01":
		s.Errorf("%v\n%s\n%s", err, pg.Detail, pg.Where)
	case !errors.Is(err, rate.ErrNothingTaken):
		s.Errorf("%v", err)
	default:
		return true
	}
	return false
}

// Callers take from the same keys, each in an order of its own, and give back: by a call for
// all of them, on its own and in a transaction of the caller's, where it waits as long as it
// takes, by a call for each, and by a call for a group.
func noDeadlock(s *suite) {
	const duration = 300 * time.Millisecond
	limit := s.needs(rate.PerSecond(1_000_000).WithBurst(1)) // there is a token each time
	driver := s.open(s.T, s.looksForDeadlocks())
	// The keys are there. (Where one is not, a strategy may break a circle by giving up after a moment,
	// which a connection that looks so soon can be ahead of.)
	for key := range 6 {
		s.take(string(rune('a'+key)), limit, 1, 1)
	}
	calls := []func([]rate.Request) error{
		func(requests []rate.Request) error { return s.takeAndGiveBack(driver.Session(), requests) },
		func(requests []rate.Request) error {
			return within(s.Context(), driver, func(tx Tx) error { return s.takeAndGiveBack(tx, requests) })
		},
		func(requests []rate.Request) error {
			var err error
			for i := range requests {
				err = errors.Join(err, s.takeAndGiveBack(driver.Session(), requests[i:i+1]))
			}
			return err
		},
	}
	if s.strategy.Check(aGroup()) == nil {
		calls = append(calls, func(requests []rate.Request) error {
			return within(s.Context(), driver, func(tx Tx) error {
				_, err := s.strategy.Take(s.Context(), tx, grouped(requests))
				return err
			})
		})
	}
	done := make([]atomic.Int64, len(calls))
	var callers sync.WaitGroup
	began := time.Now()
	for i := range 5 * len(calls) {
		callers.Go(func() {
			random, how := rand.New(rand.NewPCG(uint64(i), 37)), i%len(calls)
			unfinished := func() bool { // on a busy machine it takes longer
				return time.Since(began) < duration || done[how].Load() == 0 && time.Since(began) < patience
			}
			for unfinished() && !s.Failed() {
				var requests []rate.Request
				for _, key := range random.Perm(6)[:2+random.IntN(5)] {
					requests = append(requests, s.ask(string(rune('a'+key)), limit, 1, 1))
				}
				switch err := calls[how](requests); {
				case err == nil:
					done[how].Add(1)
				case !s.refused(err):
					return
				}
			}
		})
	}
	callers.Wait()
	for how, what := range []string{"for all keys", "in the caller's transaction", "for each key", "for a group"}[:len(calls)] {
		if done[how].Load() == 0 {
			s.Errorf("of the calls %s, none was answered", what)
		}
	}
}

// takeAndGiveBack does both in the order of the requests, or gives back in the other.
func (s *suite) takeAndGiveBack(session rate.Session, requests []rate.Request) error {
	decisions, err := s.strategy.Take(s.Context(), session, requests)
	giver, gives := s.strategy.(rate.GiveBacker)
	if err != nil || !gives || !session.Autocommits() { // in one transaction, two calls have no order
		return err
	}
	var refunds []rate.Refund
	for i, d := range decisions {
		if d.Granted > 0 {
			refunds = append(refunds, rate.Refund{Request: requests[i], At: d.At})
		}
	}
	return giver.GiveBack(s.Context(), session, refunds)
}
