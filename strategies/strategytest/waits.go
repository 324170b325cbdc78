package strategytest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// whileItWaits sends a call on a connection of its own, and calls meanwhile when it waits for a lock, which
// must end that. It returns the first decision.
func (s *suite) whileItWaits(requests []rate.Request, meanwhile func()) rate.Decision {
	s.Helper()
	conn, err := pgx.ConnectConfig(s.Context(), s.pool.Config().ConnConfig)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(s.Context())) }()
	decided := make(chan rate.Decision, 1)
	go func() {
		decisions, err := s.strategy.Take(s.Context(), postgres.OnConn(conn), requests)
		if err != nil {
			s.Errorf("while a row was held: %v", err)
			decisions = make([]rate.Decision, 1)
		}
		decided <- decisions[0]
	}()
	waiting, pid := false, int64(conn.PgConn().PID())
	for began := time.Now(); !waiting; {
		err := s.pool.QueryRow(s.Context(), "select exists (select from pg_locks where pid = $1 and not granted)", pid).Scan(&waiting)
		if err != nil || time.Since(began) > patience {
			s.Fatalf("process %d does not wait (%v)", pid, err)
		}
	}
	meanwhile()
	return <-decided
}

func (s *suite) end(end func(context.Context) error) {
	s.Helper()
	if err := end(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// Of two requests with the same ID at the same time, the second waits for the first one's
// transaction. If that commits, both have its decision; if not, the second one is decided by itself.
func onceWaits(s *suite) {
	s.needs(anID)
	for _, commit := range []bool{true, false} {
		for _, left := range []int64{9, 5, 1} { // 9: a new key
			r := s.named("id", fmt.Sprint(left, commit), slow(9), 1)
			if left < 9 {
				s.take(r.Key, r.Limit, 9-left, 9-left)
			}
			tx := s.begin()
			first := s.takeAll(tx, r)[0]
			d := s.whileItWaits([]rate.Request{r}, func() {
				if commit {
					s.end(tx.Commit)
				} else {
					s.end(tx.Rollback)
				}
			})
			if commit && d != first || d.Granted != 1 {
				s.Errorf("%s: first %+v, then %+v", r.Key, first, d)
			}
			s.has(r.Key, r.Limit, left-1)
		}
	}
}

// A request that waits for the bucket's row while the key is blocked gets nothing.
func blockedWhileItWaits(s *suite) {
	s.needs(aBlock)
	limit, block := slow(5), blocking(1)
	s.take("k", limit, 2, 2)
	tx, waiting := s.begin(), s.ask("k", limit, 2, 2)
	waiting.Block = &block
	s.takeAll(tx, s.ask("k", limit, 1, 1))
	d := s.whileItWaits([]rate.Request{waiting}, func() {
		if d := s.orBlock(limit, 4, block); !d.Blocked {
			s.Errorf("4 of 3 tokens: %+v", d)
		}
		s.end(tx.Commit)
	})
	if !d.Blocked || d.Remaining != 2 {
		s.Errorf("%+v: want it blocked, with 2 tokens left", d)
	}
	s.has("k", limit, 2)
}

// A group waits for a row that somebody else holds locked, and holds no other row meanwhile. An
// impatient call gives up.
func groupsWait(s *suite) {
	s.needs(aGroup)
	limit := slow(100)
	for _, key := range []string{"b", "new"} { // a row that is there, and one that is not committed
		group := []rate.Request{s.ask(key, limit, 99, 99), s.ask("a", limit, 1, 1), s.ask("z", limit, 1, 1)}
		s.take("b", limit, 1, 1)
		s.take("z", limit, 1, 1)
		tx := s.begin()
		s.takeAll(tx, s.ask(key, limit, 1, 1))

		impatient := []rate.Request{group[0], group[1]}
		impatient[1].Impatient = true
		_, err := s.strategy.Take(s.Context(), s.session, grouped(impatient))
		var held *rate.HeldError
		if !errors.Is(err, rate.ErrLocked) || errors.As(err, &held) && (len(held.Held) != 1 || held.Held[0] != group[0].Bucket()) {
			s.Errorf("an impatient group: %v (%+v)", err, held)
		}
		if _, err = s.strategy.Take(s.Context(), s.session, grouped(group, group)); !errors.Is(err, rate.ErrLocked) {
			s.Errorf("two groups: %v", err)
		}
		d := s.whileItWaits(grouped(group), func() {
			s.take("a", limit, 1, 1)
			s.end(tx.Rollback)
		})
		if d.Granted != 99 {
			s.Errorf("a group that waited: %+v", d)
		}
	}
}
