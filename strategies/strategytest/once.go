package strategytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/internal/session"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// named is a request that is all or nothing, with an ID.
func (s *suite) named(id, key string, limit rate.Limit, tokens int64) rate.Request {
	r := s.ask(key, limit, tokens, tokens)
	r.ID = id
	return r
}

func (s *suite) once(session rate.Session, r rate.Request) rate.Decision {
	s.Helper()
	d, err := s.knows(anID).TakeOnce(s.Context(), session, r, time.Hour)
	if err != nil {
		s.Fatalf("TakeOnce: %v", err)
	}
	return d
}

// The second request with an ID gets the first one's decision, and takes nothing. An ID is one of
// its bucket.
func once(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(9))
	first := s.once(s.session, s.named("id", "k", limit, 3))
	s.wants(first, 3, 6)
	s.wants(s.take("k", limit, 1, 1), 1, 5)
	for range 3 {
		if again := s.once(s.session, s.named("id", "k", limit, 3)); again != first {
			s.Errorf("the first decision was %+v, the same request gets %+v", first, again)
		}
	}
	s.has("k", limit, 5)
	s.wants(s.once(s.session, s.named("ID", "k", limit, 3)), 3, 2)
	s.wants(s.once(s.session, s.named("id", "another", limit, 3)), 3, 6)
	elsewhere := s.named("id", "k", limit, 3)
	elsewhere.Limiter += "2"
	s.wants(s.once(s.session, elsewhere), 3, 6)
	strange := s.named(strings.Repeat("é", rate.MaxIDBytes/2), `'\"%🔑`, limit, 3)
	for range 2 {
		s.wants(s.once(s.session, strange), 3, 6)
	}
}

// The limit changes between two tries of the same request: the second one gets the first one's
// decision, told under the first one's limit, and takes nothing.
func onceUnderAnotherLimit(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(9))
	first := s.once(s.session, s.named("id", "k", limit, 3))
	s.wants(first, 3, 6)
	for _, changed := range []rate.Limit{limit.WithBurst(10), limit.WithBurst(3), rate.PerSecond(9), rate.PerHour(9)} {
		again := s.once(s.session, s.named("id", "k", changed, 3))
		if again.Limit.Token() != limit.Token() || again.Limit.Burst != limit.Burst {
			s.Errorf("under %v it has the limit %v, granted under %v", changed, again.Limit, limit)
		}
		if again.Limit = (rate.Limit{}); again != first {
			s.Errorf("the first decision was %+v, under %v the same request gets %+v", first, changed, again)
		}
	}
	if again := s.once(s.session, s.named("id", "k", limit, 3)); again != first {
		s.Errorf("the first decision was %+v, the same request gets %+v", first, again)
	}
	s.has("k", limit, 6)
}

// A denial is not kept. A reset forgives what was taken, and not who took it.
func onceDenied(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(1))
	taken := s.once(s.session, s.named("a", "k", limit, 1))
	for range 2 {
		s.wants(s.once(s.session, s.named("b", "k", limit, 1)), 0, 0)
	}
	if err := capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k"); err != nil {
		s.Fatal(err)
	}
	if again := s.once(s.session, s.named("a", "k", limit, 1)); again != taken {
		s.Errorf("after a reset it is %+v, was %+v", again, taken)
	}
	s.wants(s.once(s.session, s.named("b", "k", limit, 1)), 1, 0)
}

// An ID can be used again when its time has passed, and not before.
func onceExpires(s *suite) {
	const ttl = 30 * time.Millisecond
	strategy, limit := s.knows(anID), s.needs(slow(9))
	last := rate.Decision{}
	for range 3 {
		_, next := s.until("a decision of its own", func() rate.Decision {
			d, err := strategy.TakeOnce(s.Context(), s.session, s.named("id", "k", limit, 1), ttl)
			if err != nil {
				s.Fatal(err)
			}
			return d
		}, func(d rate.Decision) bool { return d != last })
		if passed := next.At.Sub(last.At); passed < ttl || next.Granted != 1 {
			s.Errorf("%+v, %v after the last: want a grant after %v", next, passed, ttl)
		}
		last = next
	}
	s.has("k", limit, 6)
}

func badOnce(s *suite) {
	strategy, limit := s.knows(anID), s.needs(slow(9))
	good := s.named("id", "k", limit, 2)
	wrong := func(what string, r rate.Request, ttl time.Duration, says string) {
		s.Helper()
		d, err := strategy.TakeOnce(s.Context(), s.session, r, ttl)
		if err == nil || !strings.Contains(err.Error(), says) {
			s.Errorf("%s: %+v, %v: want an error about %s", what, d, err, says)
		}
	}
	for what, spoil := range map[string]func(*rate.Request){
		"no ID":               func(r *rate.Request) { r.ID = "" },
		"too long":            func(r *rate.Request) { r.ID = strings.Repeat("i", rate.MaxIDBytes+1) },
		"NUL":                 func(r *rate.Request) { r.ID = "a\x00" },
		"not UTF-8":           func(r *rate.Request) { r.ID = "\xff" },
		"a peek":              func(r *rate.Request) { r.Tokens, r.Unit = 0, 1 },
		"as much as there is": func(r *rate.Request) { r.Tokens, r.Unit = 2, 1 },
	} {
		r := good
		spoil(&r)
		wrong(what, r, time.Hour, "Request.ID")
	}
	for _, ttl := range []time.Duration{-1, 0, rate.MinIDTTL - 1, rate.MaxIDTTL + 1} {
		wrong("a ttl of "+ttl.String(), good, ttl, "TTL")
	}
	if _, err := s.strategy.Take(s.Context(), s.session, []rate.Request{good}); err == nil || !strings.Contains(err.Error(), "Request.ID") {
		s.Errorf("Take of a request with an ID: %v", err)
	}
	s.has("k", limit, 9)

	// The ID was granted something else. In the caller's transaction, that goes on.
	s.wants(s.once(s.session, good), 2, 7)
	err := pgx.BeginFunc(s.Context(), s.pool, func(tx pgx.Tx) error {
		for _, on := range []rate.Session{s.session, session.InTx(tx)} {
			for _, r := range []rate.Request{s.named("id", "k", limit, 1), s.named("id", "k", limit.WithBurst(8), 3)} {
				_, err := strategy.TakeOnce(s.Context(), on, r, time.Hour)
				if bad := (*rate.RequestError)(nil); !errors.As(err, &bad) || bad.Field != "ID" {
					s.Errorf("%d tokens of %v under an ID that was granted 2 of %v: %v", r.Tokens, r.Limit, limit, err)
				}
			}
			s.wants(s.once(on, good), 2, 7)
		}
		return nil
	})
	if err != nil {
		s.Error(err)
	}
	s.has("k", limit, 7)
}

func onceInTransaction(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(9))
	for _, commit := range []bool{false, true} {
		var inside rate.Decision
		err := pgx.BeginFunc(s.Context(), s.pool, func(tx pgx.Tx) error {
			inside = s.once(session.InTx(tx), s.named("id", "k", limit, 2))
			s.wants(inside, 2, 7)
			if again := s.once(session.InTx(tx), s.named("id", "k", limit, 2)); again != inside {
				s.Errorf("in the same transaction: %+v, then %+v", inside, again)
			}
			if !commit {
				return errRollback
			}
			return nil
		})
		if commit != (err == nil) {
			s.Error(err)
		}
		if after := s.once(s.session, s.named("id", "k", limit, 2)); (after == inside) != commit || after.Remaining != 7 {
			s.Errorf("committed %v: %+v in the transaction, %+v after it", commit, inside, after)
		}
		if err := capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k"); err != nil {
			s.Fatal(err)
		}
		limit.Burst = 9
		if !commit { // the next round begins anew, with an ID that was granted after the rollback
			s.limiter += "2"
		}
	}
}

// Of two requests with the same ID at the same time, the second waits for the first one's
// transaction. If that commits, both have its decision; if not, the second one is decided by itself.
func onceWaits(s *suite) {
	s.knows(anID)
	for _, commit := range []bool{true, false} {
		for name, burst := range map[string]int64{"a new key": 0, "the last token": 1, "one of many": 5} {
			key := fmt.Sprint(name, commit)
			limit := s.needs(slow(9))
			if burst > 0 {
				s.take(key, limit, 9-burst, 9-burst)
			} else {
				burst = 9
			}
			tx, err := s.pool.Begin(s.Context())
			if err != nil {
				s.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(s.Context())) }()
			first := s.once(session.InTx(tx), s.named("id", key, limit, 1))
			s.wants(first, 1, burst-1)
			second := make(chan rate.Decision, 1)
			conn := s.connect()
			var call sync.WaitGroup
			call.Go(func() {
				d, err := s.knows(anID).TakeOnce(s.Context(), session.OnConn(conn), s.named("id", key, limit, 1), time.Hour)
				if err != nil {
					s.Errorf("%s: %v", key, err)
				}
				second <- d
			})
			s.waits(conn.PgConn().PID())
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			if err := end(s.Context()); err != nil {
				s.Fatal(err)
			}
			call.Wait()
			if d := <-second; commit && d != first || d.Granted != 1 {
				s.Errorf("%s: first %+v, then %+v", key, first, d)
			}
			s.has(key, limit, burst-1)
		}
	}
}

// connect opens a connection of the test's own.
func (s *suite) connect() *pgx.Conn {
	s.Helper()
	conn, err := pgx.ConnectConfig(s.Context(), s.pool.Config().ConnConfig)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close(context.WithoutCancel(s.Context())) })
	return conn
}

// waits returns when that server process waits for a lock.
func (s *suite) waits(pid uint32) {
	s.Helper()
	for began := time.Now(); time.Since(began) < patience; {
		var waiting bool
		if err := s.pool.QueryRow(s.Context(), "select exists (select from pg_locks where pid = $1 and not granted)", int64(pid)).Scan(&waiting); err != nil {
			s.Fatal(err)
		}
		if waiting {
			return
		}
	}
	s.Fatalf("process %d does not wait", pid)
}

// A denial of a request with an ID writes and locks nothing, and nor does an answer that is given
// again.
func onceWritesNothing(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(1))
	s.once(s.session, s.named("granted", "k", limit, 1))
	for _, begin := range []string{"", "begin"} {
		w := s.watch()
		w.exec(s, begin)
		for id, granted := range map[string]int64{"granted": 1, "denied": 0} {
			w.did = nil
			if d := s.once(w, s.named(id, "k", limit, 1)); d.Granted != granted {
				s.Fatalf("%s: %+v", id, d)
			}
			if len(w.did) > 0 {
				s.Errorf("%s: it %s", id, w.did[0])
			}
		}
	}
}

// Callers on two pools send requests with IDs, two of them each, give up at random and send them
// again until they have an answer: each is charged once, and all its answers are the same.
func onceUnderLoad(s *suite) {
	const callers, each = 32, 6
	strategy, limit := s.knows(anID), s.needs(slow(callers*each*2/3))
	sessions := []rate.Session{s.session, session.OnPool(s.looksForDeadlocks())}
	var mu sync.Mutex
	answers := make(map[string]rate.Decision)
	var granted int64
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 53))
			for n := range each {
				id := fmt.Sprintf("%d-%d", i/2, n) // shared with a neighbour
				r := s.named(id, "k", limit, 1+int64(i/2+n)%3)
				d, sent, err := s.insist(random, strategy, sessions[(i+n)%2], r)
				if err != nil {
					s.Errorf("%s, sent %d times: %v", id, sent, err)
					return
				}
				mu.Lock()
				if first, known := answers[id]; !known {
					answers[id] = d
					granted += d.Granted
				} else if d != first && (d.Granted > 0 || first.Granted > 0) {
					s.Errorf("%s, sent %d times: %+v and %+v", id, sent, first, d)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if left := limit.Burst - granted; !s.Failed() {
		s.has("k", limit, left)
	}
	if len(answers) != callers/2*each || granted == 0 {
		s.Errorf("%d answers, %d tokens granted", len(answers), granted)
	}
}

// insist sends the request until it is answered. It gives up at random.
func (s *suite) insist(random *rand.Rand, strategy units, session rate.Session, r rate.Request) (d rate.Decision, sent int, err error) {
	for began := time.Now(); ; {
		sent++
		ctx, cancel := context.WithCancel(s.Context())
		if random.IntN(3) == 0 && time.Since(began) < patience/2 {
			ctx, cancel = context.WithTimeout(s.Context(), time.Duration(random.IntN(5000))*time.Microsecond)
		}
		d, err = strategy.TakeOnce(ctx, session, r, time.Hour)
		_, hurried := ctx.Deadline() // a driver may give up a little before the context does
		gaveUp := ctx.Err() != nil || hurried && err != nil
		cancel()
		if !gaveUp && !errors.Is(err, rate.ErrNothingTaken) || time.Since(began) > patience {
			return d, sent, err
		}
		if err == nil {
			return d, sent, nil
		}
	}
}
