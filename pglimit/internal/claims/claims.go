// Package claims has what goes through the stages of a Limiter.
package claims

import "github.com/pglimit/ratelimit/pglimit/rate"

// Claim is one request, or a group of requests that stand or fall together, and the answer.
type Claim struct {
	Requests []rate.Request // of a group: each has a Group

	// Rules of the table pglimit.limits that hold for the requests, each nil if there is none. Nil: there is no table.
	Rules []*rate.LimitRule

	Decisions []rate.Decision // as many
	Err       error           // no decision is known

	Beside bool // it is under a rule that is only observed, beside the claim that is decided
}

// New is a claim of these requests, without rules.
func New(requests ...rate.Request) *Claim {
	return &Claim{Requests: requests, Decisions: make([]rate.Decision, len(requests))}
}

// Rule that holds for a request, or nil.
func (c *Claim) Rule(i int) *rate.LimitRule {
	if c.Rules == nil {
		return nil
	}
	return c.Rules[i]
}

// Fail makes the error the answer.
func (c *Claim) Fail(err error) {
	clear(c.Decisions)
	c.Err = err
}

// IsGroup says whether the claim is a group.
func (c *Claim) IsGroup() bool { return c.Requests[0].Group != 0 }

// Unanswered returns the claims that answer does not answer. It copies them only if it must.
func Unanswered(all []*Claim, answer func(*Claim) bool) []*Claim {
	var rest []*Claim
	for i, c := range all {
		switch answered := answer(c); {
		case answered && rest == nil:
			rest = append(make([]*Claim, 0, len(all)), all[:i]...)
		case !answered && rest != nil:
			rest = append(rest, c)
		}
	}
	if rest == nil {
		return all
	}
	return rest
}
