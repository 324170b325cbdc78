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

func (s *suite) blockOn(session rate.Session, r rate.Request, block rate.Block) rate.Decision {
	s.Helper()
	r.Block = &block
	d := s.takeAll(session, r)[0]
	if d.Blocked != (d.BlockedFor > 0) || d.Blocked && (d.Allowed || d.Granted > 0 || d.RetryAfter < d.BlockedFor) {
		s.Errorf("%+v: blocked for %v", d, d.BlockedFor)
	}
	return d
}

func (s *suite) orBlock(key string, limit rate.Limit, tokens int64, block rate.Block) rate.Decision {
	s.Helper()
	return s.blockOn(s.session, s.ask(key, limit, tokens, max(tokens, 1)), block)
}

// The denial that is one too many blocks the key, and a blocked key is denied although the tokens
// are there, until the block ends.
func blocksAKey(s *suite) {
	s.knows(aBlock)
	block := blocking(3)
	block.For = 60 * time.Millisecond
	limit := s.needs(rate.Every(10 * time.Millisecond).WithBurst(2))
	denials := 0
	_, first := s.until("a block", func() rate.Decision { return s.orBlock("k", limit, 2, block) }, func(d rate.Decision) bool {
		if !d.Allowed {
			denials++
		}
		return d.Blocked
	})
	if denials != 3 || first.BlockedFor != block.For {
		s.Errorf("%d denials block the key, for %v: want 3, %v", denials, first.BlockedFor, block.For)
	}
	ends := first.At.Add(first.BlockedFor)
	s.until("tokens in a blocked bucket", func() rate.Decision { return s.orBlock("k", limit, 0, block) }, func(d rate.Decision) bool {
		if d.Blocked && !d.At.Add(d.BlockedFor).Equal(ends) {
			s.Errorf("a peek finds a block until %v, the first was until %v", d.At.Add(d.BlockedFor), ends)
		}
		return d.Remaining > 0 || !d.Blocked
	})
	before, granted := s.until("the end of the block", func() rate.Decision { return s.orBlock("k", limit, 1, block) },
		func(d rate.Decision) bool { return !d.Blocked })
	if granted.At.Before(ends) || !granted.Allowed {
		s.Errorf("%+v: want a grant, not before %v", granted, ends)
	}
	if !before.At.IsZero() && (!before.At.Before(ends) || !before.At.Add(before.BlockedFor).Equal(ends)) {
		s.Errorf("%+v: blocked although the block ended at %v", before, ends)
	}
	s.wants(s.orBlock("another", limit, 1, block), 1, 1)
}

// Each block lasts twice as long as the one before, up to Max. After Forget it begins again.
func blocksEscalate(s *suite) {
	s.knows(aBlock)
	limit := s.needs(slow(1))
	s.take("k", limit, 1, 1)
	block := rate.Block{After: 2, Within: time.Hour, For: 10 * time.Millisecond, Max: 35 * time.Millisecond, Forget: 200 * time.Millisecond}
	next := func() rate.Decision {
		s.Helper()
		s.until("the end of the block", func() rate.Decision { return s.orBlock("k", limit, 0, block) }, func(d rate.Decision) bool { return !d.Blocked })
		if d := s.orBlock("k", limit, 1, block); d.Blocked {
			s.Errorf("one denial blocks the key: %+v", d)
		}
		return s.orBlock("k", limit, 1, block)
	}
	ends, lasts := time.Time{}, time.Duration(0)
	for range 6 {
		d := next()
		lasts = min(2*lasts, block.Max)
		if lasts == 0 || !d.At.Before(ends.Add(block.Forget)) { // this machine was slow
			lasts = block.For
		}
		if d.BlockedFor != lasts {
			s.Errorf("a block of %v, want %v", d.BlockedFor, lasts)
		}
		ends = d.At.Add(d.BlockedFor)
	}
	s.until("the time after which a block is forgotten", func() rate.Decision { return s.orBlock("k", limit, 0, block) },
		func(d rate.Decision) bool { return !d.At.Before(ends.Add(block.Forget)) })
	if d := next(); d.BlockedFor != block.For {
		s.Errorf("a block of %v after good conduct, want %v", d.BlockedFor, block.For)
	}
}

// Denials further apart than Within do not add up.
func blocksWithin(s *suite) {
	s.knows(aBlock)
	limit, block := s.needs(slow(1)), blocking(2)
	block.Within = 20 * time.Millisecond
	s.take("k", limit, 1, 1)
	for range 4 {
		if d := s.orBlock("k", limit, 1, block); d.Blocked {
			s.Fatalf("the denials were more than %v apart: %+v", block.Within, d)
		}
		counted := s.peek("k", limit).At
		s.until("the end of the span", func() rate.Decision { return s.peek("k", limit) },
			func(d rate.Decision) bool { return d.At.Sub(counted) >= block.Within })
	}
	s.until("a block", func() rate.Decision { return s.orBlock("k", limit, 1, block) }, func(d rate.Decision) bool { return d.Blocked })
}

// Each denial is counted, whoever else is denied at the same time.
func blocksUnderLoad(s *suite) {
	const callers, each, after = 32, 10, 25
	s.knows(aBlock)
	limit := s.needs(slow(9))
	var granted, denied, blocked atomic.Int64
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range each {
				switch d := s.orBlock("k", limit, 1, blocking(after)); {
				case d.Blocked:
					blocked.Add(1)
				case d.Allowed:
					granted.Add(1)
				default:
					denied.Add(1)
				}
			}
		})
	}
	work.Wait()
	if granted.Load() != 9 || denied.Load() != after-1 {
		s.Errorf("%d granted, %d denied, %d blocked: want 9 and %d", granted.Load(), denied.Load(), blocked.Load(), after-1)
	}
}

// A request that waits for the bucket's row while the key is blocked gets nothing.
func blockedWhileItWaits(s *suite) {
	s.knows(aBlock)
	limit, block := s.needs(slow(5)), blocking(1)
	s.take("k", limit, 2, 2)
	tx, waiting := s.begin(), s.ask("k", limit, 2, 2)
	waiting.Block = &block
	s.takeAll(tx, s.ask("k", limit, 1, 1))
	d := s.whileItWaits([]rate.Request{waiting}, func() {
		if d := s.orBlock("k", limit, 4, block); !d.Blocked {
			s.Errorf("4 of 3 tokens: %+v", d)
		}
		if err := tx.Commit(s.Context()); err != nil {
			s.Fatal(err)
		}
	})[0]
	if !d.Blocked || d.Remaining != 2 {
		s.Errorf("%+v: want it blocked, with 2 tokens left", d)
	}
	s.has("k", limit, 2)
}

// Reset and ResetAll end a block, and forget the ones before.
func resetEndsABlock(s *suite) {
	s.knows(aBlock)
	limit, block := s.needs(slow(1)), blocking(1)
	for name, reset := range map[string]func() error{
		"Reset": func() error { return capable[rate.Resetter](s).Reset(s.Context(), s.session, s.limiter, "k") },
		"ResetAll": func() error {
			_, err := capable[rate.AllResetter](s).ResetAll(s.Context(), s.session, s.limiter)
			return err
		},
	} {
		for range 2 {
			s.wants(s.orBlock("k", limit, 1, block), 1, 0)
			if d := s.orBlock("k", limit, 1, block); d.BlockedFor != block.For {
				s.Errorf("%s: a block of %v, want %v", name, d.BlockedFor, block.For)
			}
			if err := reset(); err != nil {
				s.Fatal(err)
			}
		}
	}
}

// A denial counts if the caller's transaction commits.
func blocksInTransaction(s *suite) {
	s.knows(aBlock)
	limit, block := s.needs(slow(1)), blocking(2)
	s.take("k", limit, 1, 1)
	s.joins(func(tx Tx) {
		if d := s.blockOn(tx, s.ask("k", limit, 1, 1), block); d.Blocked {
			s.Errorf("the first denial that counts: %+v", d)
		}
	}, func(committed bool) {
		if committed {
			if d := s.orBlock("k", limit, 1, block); !d.Blocked {
				s.Errorf("the second denial that counts: %+v", d)
			}
		}
	})
}

func badBlocks(s *suite) {
	s.knows(aBlock)
	limit := s.needs(slow(5))
	take := func(r rate.Request, block rate.Block) error {
		r.Block = &block
		_, err := s.strategy.Take(s.Context(), s.session, []rate.Request{r})
		return err
	}
	refuses(s, blocking(1), map[string]func(*rate.Block){
		"After: none":      func(b *rate.Block) { b.After = 0 },
		"After: negative":  func(b *rate.Block) { b.After = -1 },
		"After: all zero":  func(b *rate.Block) { *b = rate.Block{} },
		"Within: none":     func(b *rate.Block) { b.Within = 0 },
		"Within: too long": func(b *rate.Block) { b.Within = rate.MaxBlock + 1 },
		"For: none":        func(b *rate.Block) { b.For = 0 },
		"For: too long":    func(b *rate.Block) { b.For = rate.MaxBlock + 1 },
		"Max: below For":   func(b *rate.Block) { b.Max = b.For - 1 },
		"Max: too long":    func(b *rate.Block) { b.Max = rate.MaxBlock + 1 },
		"Forget: negative": func(b *rate.Block) { b.Forget = -1 },
		"Forget: too long": func(b *rate.Block) { b.Forget = rate.MaxBlock + 1 },
	}, func(bad rate.Block) error { return take(s.ask("k", limit, 1, 1), bad) })
	refuses(s, s.ask("k", limit, 2, 2), map[string]func(*rate.Request){
		"Block: in parts":  func(r *rate.Request) { r.Unit = 1 },
		"ID: beside it":    func(r *rate.Request) { r.ID = "id" },
		"Key: none":        func(r *rate.Request) { r.Key = "" },
		"Tokens: too many": func(r *rate.Request) { r.Tokens, r.Unit = 6, 6 },
		"Block: ahead":     func(r *rate.Request) { r.Ahead = time.Second },
	}, func(bad rate.Request) error { return take(bad, blocking(1)) })
	s.has("k", limit, 5)

	// The longest times that are allowed.
	longest := rate.Block{After: 1, Within: rate.MaxBlock, For: rate.MaxBlock, Max: rate.MaxBlock, Forget: rate.MaxBlock}
	s.take("k", limit, 5, 5)
	if d := s.orBlock("k", limit, 1, longest); d.BlockedFor != rate.MaxBlock {
		s.Errorf("%+v: want a block of %v", d, rate.MaxBlock)
	}
	if d := s.orBlock("k", limit, 0, longest); !d.Blocked {
		s.Errorf("a peek finds no block: %+v", d)
	}
}
