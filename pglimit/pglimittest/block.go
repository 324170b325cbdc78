package pglimittest

import (
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// denied is what is known of a key's denials, as in the table token_bucket_blocks. Times are
// nanoseconds since 1970.
type denied struct {
	denials  int64 // in the span that began at sinceNS
	sinceNS  int64
	level    int64 // how many blocks there were, each soon after the one before
	untilNS  int64 // when the last block ends, or ended
	forgetNS int64 // from when on all of this means nothing
	atNS     int64 // when this was written
}

// takeOrBlock decides one request, unless the key is blocked, and counts a denial.
func (s *Strategy) takeOrBlock(nowNS int64, r *rate.Request) rate.Decision {
	n := r.Bucket()
	key := s.denied[n].stepped(nowNS)
	if blockedNS := key.untilNS - nowNS; blockedNS > 0 {
		if r.Tokens > 0 {
			s.denied[n] = key
		}
		return blocked(s.buckets[n].Decision(r, nowNS, 0), blockedNS)
	}
	d := s.take(nowNS, r)
	if d.Allowed || r.Tokens == 0 {
		return d
	}
	key = key.count(nowNS, r.Block)
	s.denied[n] = key
	if blockedNS := key.untilNS - nowNS; blockedNS > 0 {
		return blocked(d, blockedNS)
	}
	return d
}

// blocked is the decision as it reads for a blocked key.
func blocked(d rate.Decision, forNS int64) rate.Decision {
	d.Allowed, d.Blocked, d.BlockedFor = false, true, time.Duration(forNS)
	d.RetryAfter = max(d.RetryAfter, d.BlockedFor)
	return d
}

// stepped moves all times if the clock has stepped back since they were written, so that nobody
// is blocked for the length of the step.
func (k denied) stepped(nowNS int64) denied {
	if by := k.atNS - nowNS; by > bucket.StepNS {
		k.sinceNS, k.untilNS, k.forgetNS, k.atNS = k.sinceNS-by, k.untilNS-by, k.forgetNS-by, nowNS
	}
	return k
}

// count a denial of a key that is not blocked. The one that makes them block.After in a span
// blocks it.
func (k denied) count(nowNS int64, block *rate.Block) denied {
	if k.denials == 0 || nowNS >= k.sinceNS+int64(block.Within) {
		k.denials, k.sinceNS = 0, nowNS
	}
	if k.denials++; k.denials >= block.After {
		if nowNS >= k.untilNS+int64(block.Forget) {
			k.level = 0
		}
		k.level++
		k.untilNS = nowNS + int64(lasts(block, k.level))
		k.denials = 0
	}
	k.atNS = max(k.atNS, nowNS)
	k.forgetNS = max(k.sinceNS+int64(block.Within), k.untilNS+int64(block.Forget))
	return k
}

// lasts is how long the block of that level lasts: each is twice as long as the one before.
func lasts(block *rate.Block, level int64) time.Duration {
	doubled := min(level-1, 62)
	if block.For > block.Max>>doubled {
		return block.Max
	}
	return block.For << doubled
}
