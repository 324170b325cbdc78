package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A denial and a peek write nothing and lock no row: the transaction that they are in, the
// caller's or their own, has no id after them, which costs WAL, and what is written or locked
// has one.
func denialWritesNothing(s *suite) {
	limit := s.needs(slow(1))
	calls := map[string][]rate.Request{
		"one":                  {s.ask("empty", limit, 1, 1)},
		"as much as there is":  {s.ask("empty", limit, 7, 1)},
		"several buckets":      {s.ask("empty", limit, 1, 1), s.ask("another", limit, 1, 1)},
		"one bucket twice":     {s.ask("empty", limit, 1, 1), s.ask("empty", limit, 1, 1)},
		"by a slower limit":    {s.ask("empty", rate.Every(3000*time.Hour), 1, 1)},
		"a peek":               {s.ask("empty", limit, 0, 1)},
		"a peek at a new key":  {s.ask("new", limit, 0, 1)},
		"peeks at several":     {s.ask("new", limit, 0, 1), s.ask("empty", limit, 0, 1), s.ask("newer", limit, 0, 1)},
		"a peek and a denial":  {s.ask("new", limit, 0, 1), s.ask("empty", limit, 1, 1)},
		"durable":              {s.ask("empty", limit, 1, 1)},
		"impatient":            {s.ask("empty", limit, 1, 1)},
		"nothing is asked for": {},
	}
	calls["durable"][0].Durability = rate.Durable
	calls["impatient"][0].Impatient = true
	s.takeAll(s.session, s.ask("empty", limit, 1, 1), s.ask("another", limit, 1, 1))
	if five := slow(5); s.strategy.Check(&rate.Request{Limit: five}) == nil {
		s.take("some", five, 2, 2)
		calls["more than there is"] = []rate.Request{s.ask("some", five, 4, 4)}
		calls["in larger units"] = []rate.Request{s.ask("some", five, 9, 4)}
		calls["several, more than there is"] = []rate.Request{s.ask("empty", limit, 1, 1), s.ask("some", five, 4, 4), s.ask("some", five, 5, 5)}
	}
	if s.strategy.Check(aGroup()) == nil {
		calls["a group"] = grouped([]rate.Request{s.ask("new", limit, 1, 1), s.ask("empty", limit, 1, 1)})
		calls["groups"] = grouped(calls["a group"], []rate.Request{s.ask("empty", limit, 1, 1), s.ask("another", limit, 1, 1)})
	}
	const again = "an answer that is given again"
	if s.strategy.Check(anID()) == nil {
		calls["an ID"] = []rate.Request{s.named("id", "empty", limit, 1)}
		calls[again] = []rate.Request{s.named("id", "named", limit, 1)}
		s.takeAll(s.session, calls[again]...)
	}
	if s.strategy.Check(aBlock()) == nil {
		block := blocking(1)
		for what, r := range map[string]rate.Request{
			"a blocked key": s.ask("blocked", limit, 1, 1), "a peek at a blocked key": s.ask("blocked", limit, 0, 1), "a peek for blocks": s.ask("new", limit, 0, 1),
		} {
			r.Block = &block
			calls[what] = []rate.Request{r}
		}
		s.take("blocked", limit, 1, 1)
		s.takeAll(s.session, calls["a blocked key"]...)
	}
	for _, transaction := range []struct{ whose, begin, end string }{{"a transaction of its own", "", ""}, {"the caller's transaction", "begin", "rollback"}} {
		w := s.watch()
		for name, requests := range calls {
			w.exec(s, transaction.begin)
			w.did = nil
			for _, d := range s.takeAll(w, requests...) {
				if d.Granted > 0 != (name == again) || d.Contended {
					s.Fatalf("%s: %+v: want a denial, or a peek", name, d)
				}
			}
			if len(w.did) > 0 {
				s.Errorf("%s, in %s: it %s", name, transaction.whose, w.did[0])
			}
			w.exec(s, transaction.end)
		}
		// What is granted is seen: otherwise nothing would be.
		w.exec(s, transaction.begin)
		if s.takeAll(w, s.ask(transaction.whose, limit, 1, 1)); len(w.did) == 0 {
			s.Errorf("a grant in %s: nothing was written", transaction.whose)
		}
		w.exec(s, transaction.end)
	}
}

// One durable request makes the whole call durable: whatever transaction writes, commits as
// the connection does without us.
func durableCalls(s *suite) {
	limit := s.needs(slow(1))
	w := s.watch()
	w.exec(s, "set synchronous_commit = local") // which is not what a strategy would set
	check := func(what string) {
		s.Helper()
		if len(w.sync) == 0 {
			s.Errorf("%s: nothing was written", what)
		}
		for _, sync := range w.sync {
			if sync == "off" {
				s.Errorf("%s is durable, and is written with synchronous_commit %s", what, sync)
			}
		}
		w.sync = nil
	}
	durable := func(key string) rate.Request {
		r := s.ask(key, limit, 1, 1)
		r.Durability = rate.Durable
		return r
	}
	s.takeAll(w, durable("one"))
	check("a take")
	s.takeAll(w, s.ask("a", limit, 1, 1), durable("c"), s.ask("b", limit, 1, 1))
	check("a take from several")
	s.takeAll(w, durable("f"), s.ask("d", limit, 1, 1), s.ask("e", limit, 0, 1))
	check("a take from several, the first durable")
	taken := s.takeAll(s.session, durable("g"), s.ask("h", limit, 1, 1))
	if giver, is := s.strategy.(rate.GiveBacker); is {
		refunds := []rate.Refund{{Request: s.ask("h", limit, 1, 1), At: taken[1].At}, {Request: durable("g"), At: taken[0].At}}
		if err := giver.GiveBack(s.Context(), w, refunds); err != nil {
			s.Error(err)
		}
		check("a refund")
	}
	if s.strategy.Check(anID()) == nil {
		r := s.named("id", "j", limit, 1)
		r.Durability = rate.Durable
		s.once(w, r)
		check("a take with an ID")
	}
	if s.strategy.Check(aGroup()) == nil {
		s.takeAll(w, grouped([]rate.Request{s.ask("l", limit, 1, 1)}, []rate.Request{durable("m")})...)
		check("a take for groups")
	}
	if s.strategy.Check(aBlock()) == nil {
		for _, what := range []string{"a take that may block", "a denial that counts"} {
			s.blockOn(w, durable("k"), blocking(1))
			check(what)
		}
	}
	if leaser, is := s.strategy.(rate.Leaser); is {
		r := s.leaseOf("i", limit, 1)
		r.Durability = rate.Durable
		var err error
		if r.Settle, err = leaser.Lease(s.Context(), w, r); err != nil {
			s.Error(err)
		}
		check("a lease")
		if _, err = leaser.Lease(s.Context(), w, r); err != nil {
			s.Error(err)
		}
		check("a settlement")
	}
}
