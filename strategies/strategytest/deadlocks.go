package strategytest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
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
		_, err := conn.Exec(ctx, "set deadlock_timeout = '15ms'")
		if postgres.Is(err, postgres.InsufficientPrivilege) {
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

// fewDeadlocks may be found in a load in which there is none. Who waits for a row out of order gives up after a
// millisecond, or when a busy machine runs him again, and whoever waits for him may look just then: once in hundreds of
// loads. Without an order, four to nine are found in each.
const fewDeadlocks = 2

// refused says of an error whether the test goes on: Postgres may refuse a call that takes
// from several buckets, or was late, which then took nothing. Not because of deadlocks.
func (s *suite) refused(err error) bool {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == postgres.DeadlockDetected && s.deadlocks.Add(1) > fewDeadlocks:
		s.Errorf("%v\n%s\n%s", err, pg.Detail, pg.Where)
	case !errors.Is(err, rate.ErrNothingTaken):
		s.Errorf("%v", err)
	default:
		return true
	}
	return false
}

// Callers on two pools take from the same keys, each in an order of its own: as groups or each by itself, in one
// call, in a transaction of their own or of the caller's, where a call waits as long as it takes, and in a call for
// each. Others take and give back. Nobody deadlocks, every bucket is exact, and no group is taken in part.
func keysInAnyOrder(s *suite) {
	const keys = 20
	limits := []rate.Limit{{Tokens: 97, Period: 300 * ms, Burst: 20}, slow(300)}
	if !s.can(rate.Request{Limit: limits[0]}) {
		limits = []rate.Limit{rate.Every(3 * ms), rate.Every(5 * ms)}
	}
	drivers, beforehand := []Driver{s.driver, s.open(s.T, s.looksForDeadlocks())}, make(histories)
	// The rows are there. (Where one is not, a strategy may break a circle by giving up after a moment, which a
	// connection that looks so soon can be ahead of.)
	for key := range keys {
		r := s.ask(strconv.Itoa(key), limits[key%2], 1, 1)
		beforehand.record(r, s.takeAll(s.session, r)[0])
		s.take("back "+r.Key, rate.PerSecond(1_000_000).WithBurst(1), 1, 1)
	}
	all, _ := s.underLoad(64, 8, 300*ms, func(i int, random *rand.Rand, recorded histories) (granted int64, err error) {
		driver := drivers[i%2]
		var requests []rate.Request
		for group := range 1 + random.IntN(2) {
			for _, key := range random.Perm(keys)[:2+random.IntN(4)] {
				r := s.ask(strconv.Itoa(key), limits[key%2], min(1+random.Int64N(3), limits[0].Burst), 0)
				if r.Unit = r.Tokens; i/8%2 == 0 && s.can(aGroup) {
					r.Group = 1 + group
				}
				requests = append(requests, r)
			}
		}
		var decisions []rate.Decision
		switch i / 2 % 4 {
		case 0:
			decisions, err = s.strategy.Take(s.Context(), driver.Session(), requests)
		case 1:
			err = within(s.Context(), driver, func(tx Tx) error {
				decisions, err = s.strategy.Take(s.Context(), tx, requests)
				return err
			})
		case 2:
			requests = requests[:1]
			requests[0].Group = 0
			decisions, err = s.strategy.Take(s.Context(), driver.Session(), requests)
		case 3:
			return s.takeAndGiveBack(driver.Session(), requests)
		}
		if err != nil {
			return 0, err
		}
		for len(requests) > 0 {
			n := 1
			for n < len(requests) && requests[n].Group != 0 && requests[n].Group == requests[0].Group {
				n++
			}
			if !isWhole(decisions[:n]) {
				s.Errorf("a part of a group: %+v\n%+v", requests[:n], decisions[:n])
			}
			for i, d := range decisions[:n] {
				if granted += d.Granted; d.Granted > 0 || !d.Allowed { // else another bucket of the group lacked tokens
					recorded.record(requests[i], d)
				}
			}
			requests, decisions = requests[n:], decisions[n:]
		}
		return granted, nil
	})
	for key, events := range beforehand {
		number, _ := strconv.Atoi(key)
		if report := s.table.check(limits[number%2], append(events, all[key]...)); !report.OK() {
			s.Errorf("%s: %v", key, report)
		}
	}
}

// takeAndGiveBack does both for keys of its own, of which each always has a token.
func (s *suite) takeAndGiveBack(session rate.Session, requests []rate.Request) (granted int64, err error) {
	for i, r := range requests {
		requests[i] = s.ask("back "+r.Key, rate.PerSecond(1_000_000).WithBurst(1), 1, 1)
	}
	decisions, err := s.strategy.Take(s.Context(), session, requests)
	var refunds []rate.Refund
	for i, d := range decisions {
		if granted += d.Granted; d.Granted > 0 {
			refunds = append(refunds, rate.Refund{Request: requests[i], At: d.At})
		}
	}
	if giver, gives := s.strategy.(rate.GiveBacker); err == nil && gives {
		err = giver.GiveBack(s.Context(), session, refunds)
	}
	return granted, err
}
