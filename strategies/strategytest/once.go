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
	r.ID, r.IDTTL = id, time.Hour
	return r
}

func (s *suite) once(session rate.Session, r rate.Request) rate.Decision {
	s.Helper()
	return s.takeAll(session, r)[0]
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
	s.knows(anID)
	limit := s.needs(slow(9))
	r := s.named("id", "k", limit, 1)
	r.IDTTL = ttl
	last := rate.Decision{}
	for range 3 {
		_, next := s.until("a decision of its own", func() rate.Decision { return s.once(s.session, r) },
			func(d rate.Decision) bool { return d != last })
		if passed := next.At.Sub(last.At); passed < ttl || next.Granted != 1 {
			s.Errorf("%+v, %v after the last: want a grant after %v", next, passed, ttl)
		}
		last = next
	}
	s.has("k", limit, 6)
}

func badOnce(s *suite) {
	s.knows(anID)
	limit := s.needs(slow(9))
	good := s.named("id", "k", limit, 2)
	refuses(s, good, map[string]func(*rate.Request){
		"IDTTL: none of an ID":    func(r *rate.Request) { r.ID = "" },
		"ID: too long":            func(r *rate.Request) { r.ID = strings.Repeat("i", rate.MaxIDBytes+1) },
		"ID: NUL":                 func(r *rate.Request) { r.ID = "a\x00" },
		"ID: not UTF-8":           func(r *rate.Request) { r.ID = "\xff" },
		"ID: a peek":              func(r *rate.Request) { r.Tokens, r.Unit = 0, 1 },
		"ID: as much as there is": func(r *rate.Request) { r.Tokens, r.Unit = 2, 1 },
		"IDTTL: negative":         func(r *rate.Request) { r.IDTTL = -1 },
		"IDTTL: none":             func(r *rate.Request) { r.IDTTL = 0 },
		"IDTTL: too short":        func(r *rate.Request) { r.IDTTL = rate.MinIDTTL - 1 },
		"IDTTL: too long":         func(r *rate.Request) { r.IDTTL = rate.MaxIDTTL + 1 },
	}, func(bad rate.Request) error {
		_, err := s.strategy.Take(s.Context(), s.session, []rate.Request{bad})
		return err
	})
	if _, err := s.strategy.Take(s.Context(), s.session, []rate.Request{good, s.ask("l", limit, 1, 1)}); err == nil {
		s.Error("a request with an ID was decided beside another one")
	}
	s.has("k", limit, 9)

	// The ID was granted something else. In the caller's transaction, that goes on.
	s.wants(s.once(s.session, good), 2, 7)
	for _, on := range []rate.Session{s.session, s.begin()} {
		refuses(s, good, map[string]func(*rate.Request){
			"ID: fewer tokens": func(r *rate.Request) { r.Tokens, r.Unit = 1, 1 },
			"ID: more tokens":  func(r *rate.Request) { r.Limit, r.Tokens, r.Unit = limit.WithBurst(8), 3, 3 },
		}, func(bad rate.Request) error {
			_, err := s.strategy.Take(s.Context(), on, []rate.Request{bad})
			return err
		})
		s.wants(s.once(on, good), 2, 7)
	}
	s.has("k", limit, 7)
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
			tx := s.begin()
			first := s.once(tx, s.named("id", key, limit, 1))
			s.wants(first, 1, burst-1)
			d := s.whileItWaits([]rate.Request{s.named("id", key, limit, 1)}, func() {
				end := tx.Rollback
				if commit {
					end = tx.Commit
				}
				if err := end(s.Context()); err != nil {
					s.Fatal(err)
				}
			})[0]
			if commit && d != first || d.Granted != 1 {
				s.Errorf("%s: first %+v, then %+v", key, first, d)
			}
			s.has(key, limit, burst-1)
		}
	}
}

// whileItWaits sends a call on a connection of its own, and calls meanwhile when it waits for a lock, which
// must end that. It returns the decisions.
func (s *suite) whileItWaits(requests []rate.Request, meanwhile func()) []rate.Decision {
	s.Helper()
	conn, err := pgx.ConnectConfig(s.Context(), s.pool.Config().ConnConfig)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = conn.Close(context.WithoutCancel(s.Context())) })
	decided := make(chan []rate.Decision, 1)
	go func() {
		decisions, err := s.strategy.Take(s.Context(), session.OnConn(conn), requests)
		if err != nil {
			s.Errorf("while a row was held: %v", err)
			decisions = make([]rate.Decision, len(requests))
		}
		decided <- decisions
	}()
	s.waits(conn.PgConn().PID())
	meanwhile()
	return <-decided
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

// Callers on two pools send requests with IDs, two of them each, give up at random and send them
// again until they have an answer: each is charged once, and all its answers are the same.
func onceUnderLoad(s *suite) {
	const callers, each = 32, 6
	s.knows(anID)
	limit := s.needs(slow(callers * each * 2 / 3))
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
				d, sent, err := s.insist(random, sessions[(i+n)%2], r)
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

// insist sends the request until it is answered, and returns how often. It gives up at random.
func (s *suite) insist(random *rand.Rand, session rate.Session, r rate.Request) (d rate.Decision, sent int, err error) {
	for began := time.Now(); ; {
		sent++
		ctx, cancel := context.WithCancel(s.Context())
		if random.IntN(3) == 0 && time.Since(began) < patience/2 {
			ctx, cancel = context.WithTimeout(s.Context(), time.Duration(random.IntN(5000))*time.Microsecond)
		}
		decisions, err := s.strategy.Take(ctx, session, []rate.Request{r})
		_, hurried := ctx.Deadline() // a driver may give up a little before the context does
		gaveUp := ctx.Err() != nil || hurried && err != nil
		cancel()
		switch {
		case err == nil:
			return decisions[0], sent, nil
		case !gaveUp && !errors.Is(err, rate.ErrNothingTaken) || time.Since(began) > patience:
			return d, sent, err
		}
	}
}
