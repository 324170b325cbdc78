package pglimittest

import (
	"context"
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

// TakeOnce decides a request with an ID, and keeps what it was granted for the ttl.
func (s *Strategy) TakeOnce(ctx context.Context, _ rate.Session, r rate.Request, ttl time.Duration) (d rate.Decision, err error) {
	if err := validateOnce(r, ttl); err != nil {
		return rate.Decision{}, err
	}
	err = s.locked(ctx, func(nowNS int64) error {
		of := id{r.Bucket(), r.ID}
		if first, kept := s.answers[of].stepped(nowNS); kept {
			s.answers[of], d = first, first.decision
			if first.limit.Token() != r.Limit.Token() || first.limit.Burst != r.Limit.Burst {
				d.Limit = first.limit
			}
			return first.check(&r)
		}
		if d = s.take(nowNS, &r); d.Allowed {
			s.answers[of] = answer{d, r.Limit, ttl, nowNS + int64(ttl)}
		}
		return nil
	})
	if err != nil {
		return rate.Decision{}, err
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

func validateOnce(r rate.Request, ttl time.Duration) error {
	if r.ID == "" {
		return &rate.RequestError{Field: "ID", Why: "is empty: TakeOnce decides requests that have one"}
	}
	if ttl < rate.MinIDTTL || ttl > rate.MaxIDTTL {
		return fmt.Errorf("pglimittest: TakeOnce with a ttl of %v: it must be from %v to %v", ttl, rate.MinIDTTL, rate.MaxIDTTL)
	}
	return r.Validate()
}
