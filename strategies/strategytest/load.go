package strategytest

import (
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

// underLoad has so many callers call, for a while, and on a busy machine until something was granted. A
// call returns how many tokens it was granted. underLoad returns what was recorded.
func (s *suite) underLoad(callers int, duration time.Duration, call func(i int, random *rand.Rand, recorded histories) (granted int64, err error)) histories {
	s.Helper()
	recorded := make([]histories, callers)
	var granted, answers, refusals atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	goesOn := func() bool {
		lasted := time.Since(began)
		return !s.Failed() && (lasted < duration || granted.Load() == 0 && lasted < patience)
	}
	for i := range recorded {
		recorded[i] = make(histories)
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 43))
			for goesOn() {
				n, err := call(i, random, recorded[i])
				switch {
				case err == nil:
					granted.Add(n)
					answers.Add(1)
				case s.refused(err):
					refusals.Add(1)
				default:
					return
				}
			}
		})
	}
	work.Wait()
	if granted.Load() == 0 || refusals.Load() > answers.Load() {
		s.Errorf("%d tokens were granted, %d calls were answered, %d took nothing", granted.Load(), answers.Load(), refusals.Load())
	}
	all := make(histories)
	for _, of := range recorded {
		all.merge(of)
	}
	return all
}

// recordedTake is one of a caller of underLoad.
func (s *suite) recordedTake(session rate.Session, requests []rate.Request, recorded histories) (granted int64, err error) {
	decisions, err := s.strategy.Take(s.Context(), session, requests)
	for i, d := range decisions {
		recorded.record(requests[i], d) //nolint:gosec // G602: Take returns as many
		granted += d.Granted
	}
	return granted, err
}

// histories are the events of buckets, by key.
type histories map[string][]audit.Event

func (h histories) record(r rate.Request, d rate.Decision) {
	h[r.Key] = append(h[r.Key], audit.FromDecision(r, d))
}

func (h histories) merge(other histories) {
	for key, events := range other {
		h[key] = append(h[key], events...)
	}
}

// neverOver checks that grants alone are within the limit, or the looser of several.
func (s *suite) neverOver(name string, all histories, limit rate.Limit, beside ...rate.Limit) (granted int64) {
	s.Helper()
	for key, events := range all {
		report := audit.Check(limit, events, beside...)
		if report.Over.Tokens > 0 || report.Err != nil {
			s.Errorf("%s: %s: %v", name, key, report)
		}
		granted += report.Granted
	}
	return granted
}

// 48 callers, of whom half want the same key: never over the limit, no denial that was not
// due, unless it says that it was contended, and all of it while it happened.
func exactUnderLoad(s *suite) {
	for name, limit := range map[string]rate.Limit{
		"one per interval": rate.Every(15 * time.Millisecond),
		"mixed costs":      {Tokens: 97, Period: 300 * time.Millisecond, Burst: 20},
	} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		before := s.clock().UnixNano()
		all := s.underLoad(48, 250*time.Millisecond, func(_ int, random *rand.Rand, recorded histories) (int64, error) {
			return s.recordedTake(s.session, s.mixed(name, random, limit), recorded)
		})
		after := s.clock().UnixNano()
		for key, events := range all {
			if report := s.table.Check(limit, events); !report.OK() {
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
func (s *suite) mixed(name string, random *rand.Rand, limit rate.Limit) []rate.Request {
	keys := []string{name + " hot"}
	if random.IntN(2) == 0 {
		keys[0] = name + string(rune('a'+random.IntN(4)))
		if random.IntN(4) == 0 {
			keys = append(keys, name+" hot")
		}
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
