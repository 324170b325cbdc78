package queue

import (
	"fmt"
	"slices"
	"time"

	arithmetic "github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// unit is what a caller waits for: one request, or those of a group. Callers with equal units can take each other's
// places.
type unit struct {
	line     line
	requests []rate.Request // without Ahead: how long a caller may wait does not matter in a line
}

// line is the unit, to be compared.
type line struct {
	first rate.Request
	rest  string // of a group
}

// door is where new callers come in: that of a bucket, or of equal groups.
type door struct {
	rate.Bucket
	rest string
}

func unitOf(requests []rate.Request) unit {
	requests = slices.Clone(requests)
	for i := range requests {
		requests[i].Ahead = 0
	}
	u := unit{line{first: requests[0]}, requests}
	if len(requests) > 1 {
		u.line.rest = fmt.Sprintf("%#v", requests[1:])
	}
	return u
}

func (u unit) door() door { return door{u.line.first.Bucket(), u.line.rest} }

// place is a reservation: a decision for each request of the unit.
type place struct {
	decisions []rate.Decision
	due       time.Time
}

func placeOf(requests []rate.Request, decisions []rate.Decision) place {
	decisions = slices.Clone(decisions)
	for i := range decisions {
		d, r := &decisions[i], &requests[i]
		d.Limiter, d.Key, d.Limit = r.Limiter, r.Key, r.Limit
	}
	return place{decisions, time.Now().Add(arithmetic.AtMost(Delay(decisions)))}
}

// Delay is the longest of the decisions'.
func Delay(decisions []rate.Decision) (longest time.Duration) {
	for i := range decisions {
		longest = max(longest, decisions[i].Delay)
	}
	return longest
}

// by is when the tokens are due by the database's clock: the last of a group's.
func (p place) by() (latest time.Time) {
	for i := range p.decisions {
		if by := p.decisions[i].At.Add(p.decisions[i].Delay); by.After(latest) {
			latest = by
		}
	}
	return latest
}

// granted is how many tokens are reserved.
func (p place) granted() (tokens int64) {
	for i := range p.decisions {
		tokens += p.decisions[i].Granted
	}
	return tokens
}

// refunds give the place back.
func (v *vacancy) refunds() (all []rate.Refund) {
	for i, r := range v.unit.requests {
		r.Group = 0 // each by itself
		all = append(all, rate.Refund{Request: r, At: v.decisions[i].At, Delay: v.decisions[i].Delay})
	}
	return all
}
