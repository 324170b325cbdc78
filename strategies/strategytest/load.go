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

// load is what callers do for a while, and on a busy machine until they were granted something.
type load struct {
	began    time.Time
	duration time.Duration
	granted  atomic.Int64
}

func newLoad(duration time.Duration) *load { return &load{began: time.Now(), duration: duration} }

func (l *load) goesOn() bool {
	lasted := time.Since(l.began)
	return lasted < l.duration || l.granted.Load() == 0 && lasted < patience
}

// underLoad has so many callers record what they were granted, each until the load is over or one
// reports false. call returns how many tokens that were.
func (s *suite) underLoad(callers int, duration time.Duration, call func(i int, random *rand.Rand, record func(audit.Event)) (granted int64, goOn bool)) (all audit.History) {
	histories := make([]audit.History, callers)
	load := newLoad(duration)
	var work sync.WaitGroup
	for i := range histories {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 43))
			for load.goesOn() {
				granted, goOn := call(i, random, histories[i].Add)
				load.granted.Add(granted)
				if !goOn {
					return
				}
			}
		})
	}
	work.Wait()
	for i := range histories {
		all.Merge(&histories[i])
	}
	return all
}

// recordedTake is one of a caller of underLoad.
func (s *suite) recordedTake(session rate.Session, r rate.Request, record func(audit.Event)) (granted int64, goOn bool) {
	decisions, err := s.strategy.Take(s.Context(), session, []rate.Request{r})
	if err != nil {
		s.Error(err)
		return 0, false
	}
	record(audit.FromDecision(r, decisions[0]))
	return decisions[0].Granted, true
}

// histories are the events of buckets, by key.
type histories map[string][]audit.Event

func (h histories) record(r rate.Request, d rate.Decision) {
	h[r.Key] = append(h[r.Key], audit.FromDecision(r, d))
}

// check merges what the callers recorded, and checks each bucket by the strategy's rule.
func (s *suite) check(limit rate.Limit, callers []histories) (report audit.Report) {
	all := make(histories)
	for _, caller := range callers {
		for key, events := range caller {
			all[key] = append(all[key], events...)
		}
	}
	for key, events := range all {
		one := s.table.Check(limit, events)
		one.Over.Bucket = key
		report.Add(one)
	}
	return report
}

// 48 callers, of whom half want the same key: never over the limit, no denial that was not
// due, unless it says that it was contended, and all of it while it happened.
func exactUnderLoad(s *suite) {
	const callers, duration = 48, 250 * time.Millisecond
	for name, limit := range map[string]rate.Limit{
		"one per interval": rate.Every(15 * time.Millisecond),
		"mixed costs":      {Tokens: 97, Period: 300 * time.Millisecond, Burst: 20},
	} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		recorded := make([]histories, callers)
		var answers, refusals atomic.Int64
		before := s.clock()
		var first, last [callers]time.Time
		var work sync.WaitGroup
		load := newLoad(duration)
		for i := range recorded {
			recorded[i] = make(histories)
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 41))
				for load.goesOn() {
					requests := s.mixed(name, random, limit)
					decisions, err := s.strategy.Take(s.Context(), s.session, requests)
					if err != nil {
						if !s.refused(err) {
							return
						}
						refusals.Add(1)
						continue
					}
					answers.Add(1)
					for j, d := range decisions {
						recorded[i].record(requests[j], d)
						load.granted.Add(d.Granted)
						if first[i].IsZero() || d.At.Before(first[i]) {
							first[i] = d.At
						}
						if d.At.After(last[i]) {
							last[i] = d.At
						}
					}
				}
			})
		}
		work.Wait()
		after := s.clock()
		for i := range first {
			if !first[i].IsZero() && (first[i].Before(before) || last[i].After(after)) {
				s.Errorf("%s: decisions are from %v to %v, the calls were from %v to %v", name, first[i], last[i], before, after)
			}
		}
		if report := s.check(limit, recorded); !report.OK() || report.Granted == 0 {
			s.Errorf("%s: %v", name, report)
		}
		if refusals.Load() > answers.Load() {
			s.Errorf("%s: %d calls were answered, %d took nothing", name, answers.Load(), refusals.Load())
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
