package strategytest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// blocking is a rule of which nothing comes to an end during a test.
func blocking(after int64) rate.Block {
	return rate.Block{After: after, Within: time.Hour, For: time.Hour, Max: 3 * time.Hour, Forget: time.Hour}
}

func (s *suite) orBlock(limit rate.Limit, tokens int64, block rate.Block) rate.Decision {
	s.Helper()
	r := s.ask("k", limit, tokens, tokens)
	r.Block = &block
	return s.takeAll(s.session, r)[0]
}

// Denials further apart than Within do not add up.
func blocksWithin(s *suite) {
	s.needs(aBlock)
	limit, block := slow(1), blocking(2)
	block.Within = 20 * time.Millisecond
	s.take("k", limit, 1, 1)
	for range 4 {
		if d := s.orBlock(limit, 1, block); d.Blocked {
			s.Fatalf("the denials were more than %v apart: %+v", block.Within, d)
		}
		counted := s.peek("k", limit).At
		s.until("the end of the span", func() rate.Decision { return s.peek("k", limit) },
			func(d rate.Decision) bool { return d.At.Sub(counted) >= block.Within })
	}
	s.until("a block", func() rate.Decision { return s.orBlock(limit, 1, block) }, func(d rate.Decision) bool { return d.Blocked })
}

// Each denial is counted, whoever else is denied at the same time.
func blocksUnderLoad(s *suite) {
	const callers, each, after = 32, 10, 25
	s.needs(aBlock)
	limit := slow(9)
	var granted, denied atomic.Int64
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range each {
				if d := s.orBlock(limit, 1, blocking(after)); d.Allowed {
					granted.Add(1)
				} else if !d.Blocked {
					denied.Add(1)
				}
			}
		})
	}
	work.Wait()
	if granted.Load() != 9 || denied.Load() != after-1 {
		s.Errorf("%d granted, %d denied and not blocked: want 9 and %d", granted.Load(), denied.Load(), after-1)
	}
}
