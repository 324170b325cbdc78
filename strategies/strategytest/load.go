package strategytest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// clock is the one that decides: the database's.
func (s *suite) clock() (now time.Time) {
	s.Helper()
	if s.inMemory != nil {
		return s.inMemory()
	}
	if err := s.pool.QueryRow(s.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		s.Fatal(err)
	}
	return now
}

// underLoad has so many callers call, for a while, and on a busy machine until each of that many kinds, caller
// i % kinds, has had an answer and something was granted. A call returns how many tokens it was granted, all of
// which underLoad returns beside what was recorded.
func (s *suite) underLoad(callers, kinds int, duration time.Duration, call func(i int, random *rand.Rand, recorded histories) (granted int64, err error)) (all histories, granted int64) {
	s.Helper()
	recorded, answered := make([]histories, callers), make([]atomic.Bool, kinds)
	var tokens atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for i := range recorded {
		recorded[i] = make(histories)
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 43))
			goesOn := func() bool {
				lasted := time.Since(began)
				return !s.Failed() && (lasted < duration || lasted < patience && (tokens.Load() == 0 || !answered[i%kinds].Load()))
			}
			for goesOn() {
				n, err := call(i, random, recorded[i])
				switch {
				case err == nil:
					tokens.Add(n)
					answered[i%kinds].Store(true)
				case !s.refused(err):
					return
				}
			}
		})
	}
	work.Wait()
	for kind := range answered {
		if !answered[kind].Load() {
			s.Errorf("of the calls of kind %d, none was answered", kind)
		}
	}
	if tokens.Load() == 0 {
		s.Error("no tokens were granted")
	}
	all = make(histories)
	for _, of := range recorded {
		for key, events := range of {
			all[key] = append(all[key], events...)
		}
	}
	return all, tokens.Load()
}

// histories are the events of buckets, by key.
type histories map[string][]audit.Event

func (h histories) record(r rate.Request, d rate.Decision) {
	h[r.Key] = append(h[r.Key], audit.FromDecision(r.Tokens, r.Unit, d))
}

// used records the units of a grant, each when it is due.
func (h histories) used(r rate.Request, d rate.Decision) {
	for left := d.Granted; left > 0; left -= r.Unit {
		due := max(0, d.Delay-time.Duration(left-r.Unit)*r.Limit.Token())
		h[r.Key] = append(h[r.Key], audit.Event{At: d.At.Add(due).UnixNano(), Granted: r.Unit})
	}
}

// 48 callers, of whom half want the same key, and some all at once a new one: never over the limit, no denial
// that was not due, unless it says that it was contended, and all of it while it happened.
func exactUnderLoad(s *suite) {
	for _, limit := range []rate.Limit{rate.Every(15 * ms), {Tokens: 97, Period: 300 * ms, Burst: 20}} {
		if !s.can(rate.Request{Limit: limit}) {
			continue
		}
		before := s.clock().UnixNano()
		all, _ := s.underLoad(48, 1, 250*ms, func(_ int, random *rand.Rand, recorded histories) (granted int64, err error) {
			requests := s.mixed(random, limit)
			decisions, err := s.strategy.Take(s.Context(), s.session, requests)
			for i, d := range decisions {
				recorded.record(requests[i], d)
				granted += d.Granted
			}
			return granted, err
		})
		after := s.clock().UnixNano()
		for key, events := range all {
			if report := s.table.check(limit, events); !report.OK() {
				s.Errorf("%s: %v", key, report)
			}
			for _, e := range events {
				if e.At < before || e.At > after {
					s.Errorf("%s: a decision %v after the beginning of the load, and %v before its end", key, time.Duration(e.At-before), time.Duration(after-e.At))
				}
			}
		}
	}
}

// mixed is a call for a key, mostly, of several sorts.
func (s *suite) mixed(random *rand.Rand, limit rate.Limit) []rate.Request {
	hot := limit.String() + " hot"
	keys := []string{hot}
	switch random.IntN(8) {
	case 0:
		keys[0] = fmt.Sprint(limit, " new ", time.Now().UnixMilli()/20)
	case 1, 2:
		keys[0] = limit.String() + string(rune('a'+random.IntN(4)))
	case 3:
		keys[0] = limit.String() + string(rune('a'+random.IntN(4)))
		keys = append(keys, hot)
	}
	var requests []rate.Request
	for _, key := range keys {
		r := s.ask(key, limit, 1, 1)
		if limit.Burst > 1 {
			r.Tokens = 1 + random.Int64N(8)
			r.Unit = 1 + random.Int64N(r.Tokens)
		}
		switch random.IntN(8) {
		case 0:
			r.Tokens = 0
		case 1, 2:
			r.Durability = rate.Durable
		}
		requests = append(requests, r)
	}
	return requests
}

// Callers of two processes, under two versions of a limit as during a rolling deploy; or under one, when some also
// reserve, cancel, lease, spend, and settle in time or not. What they use, when it is due, is never over the looser
// limit, and nothing is due later than was asked for.
func neverOver(s *suite) {
	if !s.fillsAsATokenBucket() {
		s.Skip("what another rule grants under two limits, the rows of its table say")
	}
	sessions := []rate.Session{s.session, s.another}
	for _, limits := range [][2]rate.Limit{
		{rate.PerSecond(100).WithBurst(10), rate.PerSecond(200).WithBurst(10)},
		{rate.PerSecond(100).WithBurst(100), rate.PerSecond(100).WithBurst(10)},
		{rate.PerSecond(500).WithBurst(3), rate.PerSecond(20).WithBurst(200)},
		{rate.PerSecond(997).WithBurst(50), slow(60)},
		{rate.Every(20 * ms), rate.Every(30 * ms)},
		{rate.Every(5 * ms), rate.Every(5 * ms)},
		{{Tokens: 97, Period: 200 * ms, Burst: 60}, {Tokens: 97, Period: 200 * ms, Burst: 60}},
	} {
		if !s.can(rate.Request{Limit: limits[0]}) || !s.can(rate.Request{Limit: limits[1]}) {
			continue
		}
		key, alike := fmt.Sprint(limits), limits[0] == limits[1]
		var held [4]rate.Lease
		all, _ := s.underLoad(24, 2*len(held), 150*ms, func(i int, random *rand.Rand, recorded histories) (granted int64, err error) {
			limit, session := limits[i%2], sessions[i/2%2]
			if leaser, leases := s.strategy.(rate.Leaser); leases && alike && i < len(held) {
				return s.spends(leaser, rate.LeaseRequest{
					Limiter: s.limiter, Key: key, Limit: limit, Tokens: 1 + random.Int64N(20), Share: 1 + random.Int64N(4), TTL: time.Duration(1+random.IntN(30)) * ms,
				}, &held[i], random, recorded)
			}
			r := s.ask(key, limit, 1+random.Int64N(6), 1)
			r.Unit = 1 + random.Int64N(min(r.Tokens, limit.Burst))
			if alike && random.IntN(3) > 0 && s.can(ahead) {
				r.Ahead = time.Duration(random.Int64N(int64(3 * limit.Window())))
			}
			decisions, err := s.strategy.Take(s.Context(), session, []rate.Request{r})
			if err != nil {
				return 0, err
			}
			d := decisions[0]
			if d.Delay > r.Ahead || d.Delay < 0 || d.Granted == 0 && d.Delay > 0 {
				s.Errorf("%+v: want a delay of at most %v", d, r.Ahead)
			}
			if giver, gives := s.strategy.(rate.GiveBacker); gives && alike && d.Granted > 0 && random.IntN(4) == 0 {
				back := rate.Refund{Request: s.ask(key, limit, d.Granted, min(d.Granted, limit.Burst)), At: d.At, Delay: d.Delay}
				return 0, giver.GiveBack(s.Context(), session, []rate.Refund{back})
			}
			recorded.used(r, d)
			return d.Granted, nil
		})
		if report := audit.Check(nil, limits[0], all[key], limits[1]); report.Over.Tokens > 0 || report.Err != nil {
			s.Errorf("%s: %v", key, report)
		}
	}
}

// spends settles a lease, and takes the next one. It records what was spent of the old one: at once, or just before
// it was settled or over.
func (s *suite) spends(leaser rate.Leaser, r rate.LeaseRequest, held *rate.Lease, random *rand.Rand, recorded histories) (spent int64, err error) {
	old := *held
	r.Settle, r.Spent = old, random.Int64N(old.Tokens+1)
	next, err := leaser.Lease(s.Context(), s.session, r)
	if err != nil {
		return 0, err
	}
	*held = next
	at := old.At
	if random.IntN(2) == 0 {
		if at = next.At; at.After(old.Until) {
			at = old.Until
		}
	}
	recorded[r.Key] = append(recorded[r.Key], audit.Event{At: at.UnixNano(), Granted: r.Spent})
	return r.Spent, nil
}

// Leases that are spent and settled while others take, and nothing flows back: what was granted, or spent, is
// what is missing in the end.
func leasesLoseNothing(s *suite) {
	leaser, leases := s.strategy.(rate.Leaser)
	if !leases {
		s.Skipf("%s has no leases", s.strategy.Name())
	}
	limit := rate.Every(time.Hour).WithBurst(1_000_000)
	s.needs(rate.Request{Limit: limit})
	var held [4]rate.Lease
	_, used := s.underLoad(16, 2*len(held), 150*ms, func(i int, random *rand.Rand, recorded histories) (int64, error) {
		if i >= len(held) {
			decisions, err := s.strategy.Take(s.Context(), s.session, []rate.Request{s.ask("k", limit, 1+random.Int64N(9), 1)})
			if err != nil {
				return 0, err
			}
			return decisions[0].Granted, nil
		}
		r := rate.LeaseRequest{Limiter: s.limiter, Key: "k", Limit: limit, Tokens: 50, Share: 4, TTL: time.Hour}
		return s.spends(leaser, r, &held[i], random, recorded)
	})
	for i := range held {
		used += held[i].Tokens // all but these is spent, or in the bucket
	}
	s.has("k", limit, limit.Burst-used)
}
