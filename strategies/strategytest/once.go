package strategytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// named is a request that is all or nothing, with an ID.
func (s *suite) named(id, key string, limit rate.Limit, tokens int64) rate.Request {
	r := s.ask(key, limit, tokens, tokens)
	r.ID, r.IDTTL = id, time.Hour
	return r
}

// An ID can be used again when its time has passed, also under another limit, and not before.
func onceExpires(s *suite) {
	s.needs(anID)
	last := rate.Decision{}
	for i := range int64(3) {
		r := s.named("id", "k", slow(9+i), 1)
		r.IDTTL = 30 * ms
		_, next := s.until("a decision of its own", func() rate.Decision { return s.takeAll(s.session, r)[0] },
			func(d rate.Decision) bool { return !d.At.Equal(last.At) })
		again := s.takeAll(s.session, r)[0]
		if passed := next.At.Sub(last.At); passed < r.IDTTL || next.Granted != 1 || again != next && again.At.Equal(next.At) {
			s.Errorf("%+v, %v after the last, and then %+v: want a grant after %v", next, passed, again, r.IDTTL)
		}
		last = again
	}
}

// Callers on two pools send requests with IDs, two of them each, give up at random and send them
// again until they have an answer: each is charged once, and all its answers are the same.
func onceUnderLoad(s *suite) {
	const callers, each = 32, 6
	s.needs(anID)
	limit := slow(callers * each * 2 / 3)
	sessions := []rate.Session{s.session, postgres.OnPool(s.looksForDeadlocks())}
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
