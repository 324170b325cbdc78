package pglimittest

import (
	"context"
	"fmt"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Take decides the requests in their order, at one time.
func (s *Strategy) Take(ctx context.Context, _ rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := validate(requests); err != nil {
		return nil, err
	}
	decisions := make([]rate.Decision, len(requests))
	err := s.locked(ctx, func(nowNS int64) error {
		for i := range requests {
			decisions[i] = s.take(nowNS, &requests[i])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return decisions, nil
}

// take decides one request.
func (s *Strategy) take(nowNS int64, r *rate.Request) rate.Decision {
	n := r.Bucket()
	row := s.buckets[n]
	b := row
	if r.Tokens > 0 { // corrected after a step of the clock: even a denial writes it
		b = b.Stepped(nowNS)
	}
	granted := b.Grantable(nowNS, r)
	if granted > 0 {
		b = b.Take(nowNS, granted, r.Limit)
	}
	s.keep(n, row, b)
	return b.Decision(r, b.Dated(nowNS), granted)
}

// validate returns an error for requests that cannot be decided together.
func validate(requests []rate.Request) error {
	limits := make(map[rate.Bucket]rate.Limit, len(requests))
	for i := range requests {
		r := &requests[i]
		if err := r.Validate(); err != nil {
			return err
		}
		if r.ID != "" {
			return &rate.RequestError{Field: "ID", Why: fmt.Sprintf("is %q: Take decides requests without one", r.ID)}
		}
		n := r.Bucket()
		if before, twice := limits[n]; twice && before != r.Limit {
			return &rate.RequestError{Field: "Limit", Why: fmt.Sprintf("is %v and %v for the same key %q in one call: a bucket has one limit at a time (use another limiter name)", before, r.Limit, r.Key)}
		}
		limits[n] = r.Limit
	}
	return nil
}

// TakeGroups decides the groups in their order, at one time.
func (s *Strategy) TakeGroups(ctx context.Context, _ rate.Session, groups [][]rate.Request) ([][]rate.Decision, error) {
	if err := validateGroups(groups); err != nil {
		return nil, err
	}
	decisions := make([][]rate.Decision, len(groups))
	err := s.locked(ctx, func(nowNS int64) error {
		for i, group := range groups {
			decisions[i] = s.takeGroup(nowNS, group)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return decisions, nil
}

// takeGroup looks at all buckets, and takes from them if all have the tokens.
func (s *Strategy) takeGroup(nowNS int64, group []rate.Request) []rate.Decision {
	decisions := make([]rate.Decision, len(group))
	all := true
	for i := range group {
		look := group[i]
		look.Tokens = 0
		decisions[i] = s.take(nowNS, &look)
		all = all && decisions[i].Allowed
	}
	if all {
		for i := range group {
			decisions[i] = s.take(nowNS, &group[i])
		}
	}
	return decisions
}

func validateGroups(groups [][]rate.Request) error {
	var all []rate.Request
	for _, group := range groups {
		seen := make(map[rate.Bucket]bool, len(group))
		for i := range group {
			r := &group[i]
			if r.Tokens == 0 || r.Unit != r.Tokens || r.Ahead != 0 {
				return &rate.RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d in units of %d, %v ahead: the requests of a group take all or nothing, and nothing ahead", r.Tokens, r.Unit, r.Ahead)}
			}
			n := r.Bucket()
			if seen[n] {
				return &rate.RequestError{Field: "Key", Why: fmt.Sprintf("is %q twice in one group, for the limiter %q: ask for the sum of the tokens", r.Key, r.Limiter)}
			}
			seen[n] = true
		}
		all = append(all, group...)
	}
	return validate(all)
}
