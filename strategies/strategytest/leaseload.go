package strategytest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Holders lease, spend and settle, in time or not, while others take: never over the limit,
// whenever between the beginning and the end of a lease it was spent.
func leasesUnderLoad(s *suite) {
	const holders, callers, duration = 6, 24, 250 * time.Millisecond
	capable[rate.Leaser](s)
	limit := s.needs(rate.Limit{Tokens: 97, Period: 200 * time.Millisecond, Burst: 60})
	var held [holders]rate.Lease
	var spent atomic.Int64
	all := s.underLoad(callers, duration, func(i int, random *rand.Rand, recorded histories) (int64, error) {
		if i >= holders {
			return s.recordedTake(s.session, []rate.Request{s.ask("k", limit, 1+random.Int64N(6), 1)}, recorded)
		}
		r, last := s.leaseOf("k", limit, 1+random.Int64N(20)), held[i]
		r.Share, r.TTL = 1+random.Int64N(4), time.Duration(1+random.IntN(30))*time.Millisecond
		r.Settle, r.Spent = last, random.Int64N(last.Tokens+1)
		next, err := capable[rate.Leaser](s).Lease(s.Context(), s.session, r)
		if err != nil {
			return 0, err
		}
		// It was spent at once, or just before it was settled or over.
		at := last.At
		if random.IntN(2) == 0 {
			at = next.At
			if at.After(last.Until) {
				at = last.Until
			}
		}
		recorded["k"] = append(recorded["k"], audit.Event{At: at.UnixNano(), Granted: r.Spent})
		held[i] = next
		spent.Add(r.Spent)
		return 0, nil
	})
	// What others have set aside denies what the grants would leave room for.
	if granted := s.neverOver("leases", all, limit); spent.Load() == 0 || granted == spent.Load() {
		s.Errorf("%d tokens were granted, with %d spent of leases", granted, spent.Load())
	}
}

// The same while nothing flows back: what was granted, or spent of leases, is what is missing
// in the end.
func leasesLoseNothing(s *suite) {
	const holders, callers, rounds, burst = 4, 16, 20, 10_000
	capable[rate.Leaser](s)
	limit := s.needs(rate.Every(50 * time.Hour).WithBurst(burst))
	var used atomic.Int64
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 47))
			var held rate.Lease
			for range rounds {
				if i >= holders {
					d, err := s.strategy.Take(s.Context(), s.session, []rate.Request{s.ask("k", limit, 1+random.Int64N(9), 1)})
					if err != nil {
						s.Error(err)
						return
					}
					used.Add(d[0].Granted)
					continue
				}
				r := s.leaseOf("k", limit, 50)
				r.Share, r.Settle, r.Spent = 4, held, random.Int64N(held.Tokens+1)
				var err error
				if held, err = capable[rate.Leaser](s).Lease(s.Context(), s.session, r); err != nil {
					s.Error(err)
					return
				}
				used.Add(r.Spent)
			}
			if held.Tokens == 0 {
				return
			}
			if _, err := capable[rate.Leaser](s).Lease(s.Context(), s.session, s.settling("k", limit, held, 1)); err != nil {
				s.Error(err)
			}
			used.Add(1)
		})
	}
	work.Wait()
	if d := s.peek("k", limit); burst-d.Remaining != used.Load() {
		s.Errorf("the bucket lacks %d tokens, %d were used", burst-d.Remaining, used.Load())
	}
}
