package pglimittest

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// id names a request with an ID.
type id struct {
	rate.Bucket
	id string
}

// answer is what a request with an ID was granted.
type answer struct {
	decision rate.Decision
	limit    rate.Limit
	ttl      time.Duration
	untilNS  int64
}

// takeOnce decides a request with an ID, and keeps what it was granted for the IDTTL.
func (s *Strategy) takeOnce(nowNS int64, r *rate.Request) (rate.Decision, error) {
	of := id{r.Bucket(), r.ID}
	if first, kept := s.answers[of].stepped(nowNS); kept {
		s.answers[of] = first
		d := first.decision
		if first.limit.Token() != r.Limit.Token() || first.limit.Burst != r.Limit.Burst {
			d.Limit = first.limit
		}
		return d, first.check(r)
	}
	d := s.take(nowNS, r)
	if d.Allowed {
		s.answers[of] = answer{d, r.Limit, r.IDTTL, nowNS + int64(r.IDTTL)}
	}
	return d, nil
}

// stepped returns the answer, and whether it is still kept. If the clock has stepped back since,
// it is kept for its ttl from now on, since nobody knows how much of that has passed.
func (a answer) stepped(nowNS int64) (answer, bool) {
	if a.untilNS-int64(a.ttl) > nowNS+bucket.StepNS {
		a.untilNS = nowNS + int64(a.ttl)
	}
	return a, a.untilNS > nowNS
}

// check returns an error if the ID was granted tokens for another request than r. The limit may
// have changed between two tries of the same request.
func (a answer) check(r *rate.Request) error {
	if a.decision.Granted == r.Tokens {
		return nil
	}
	return &rate.RequestError{Field: "ID", Why: fmt.Sprintf(
		"is %q: a request with this ID was granted %d tokens, and this one is for %d (give each request an ID of its own)", r.ID, a.decision.Granted, r.Tokens)}
}
