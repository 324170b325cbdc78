package serve

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ask asks for tokens of one bucket, or looks at it.
type ask struct {
	Limiter string  `json:"limiter"`
	Key     string  `json:"key"`
	Tokens  *int64  `json:"tokens"` // nil: 1
	Limit   *string `json:"limit"`  // nil: the limiter's own
	ID      *string `json:"id"`
}

// asks is the body of /v1/allow and /v1/peek: one request, or several.
type asks struct {
	ask
	WaitMS int64 `json:"wait_ms"`
	Each   []ask `json:"requests"`
	All    bool  `json:"all"`
}

// bucket is the body of /v1/reset.
type bucket struct {
	Limiter string `json:"limiter"`
	Key     string `json:"key"`
}

// correction is the body of /v1/refund and /v1/settle.
type correction struct {
	Decision *Decision `json:"decision"`
	Tokens   *int64    `json:"tokens"`
}

// Decision is a decision in JSON, as answered here and printed by the command. Times are milliseconds, rounded up, so that waiting that long is enough.
type Decision struct {
	Limiter      string    `json:"limiter"`
	Key          string    `json:"key"`
	Allowed      bool      `json:"allowed"`
	Granted      int64     `json:"granted"`
	Remaining    *int64    `json:"remaining,omitempty"`
	RetryAfterMS int64     `json:"retry_after_ms"`
	ResetAfterMS *int64    `json:"reset_after_ms,omitempty"`
	WaitedMS     int64     `json:"waited_ms,omitempty"`
	Contended    bool      `json:"contended,omitempty"`
	Blocked      bool      `json:"blocked,omitempty"`
	BlockedForMS int64     `json:"blocked_for_ms,omitempty"`
	Limit        string    `json:"limit,omitempty"` // left out if a rule without one has answered
	At           time.Time `json:"at,omitzero"`     // by the database's clock; left out of a fallback
	Source       string    `json:"source"`
	Rule         int64     `json:"rule,omitempty"`     // the row of pglimit.limits that decided
	Observed     *bool     `json:"observed,omitempty"` // what a rule that is only observed would have allowed
}

// NewDecision returns the decision in JSON.
func NewDecision(d pglimit.Decision) Decision {
	out := Decision{
		Limiter: d.Limiter, Key: d.Key,
		Allowed: d.Allowed, Granted: d.Granted,
		RetryAfterMS: milliseconds(d.RetryAfter), WaitedMS: milliseconds(d.Delay),
		Contended: d.Contended, Blocked: d.Blocked, BlockedForMS: milliseconds(d.BlockedFor),
		Limit: d.Limit.String(), At: d.At, Source: d.Source.String(),
	}
	if d.Rule != nil {
		out.Rule = d.Rule.ID
	}
	if d.Observed != nil {
		out.Observed = &d.Observed.Allowed
	}
	if d.Source == pglimit.FromRule {
		out.Limit = ""
		return out
	}
	// No bucket is both empty and full: this one is unknown. on_error has answered without looking, or a group was
	// denied from memory because of another bucket.
	if d.Remaining != 0 || d.ResetAfter != 0 {
		out.Remaining, out.ResetAfterMS = &d.Remaining, new(milliseconds(d.ResetAfter))
	}
	return out
}

// granted returns the answered decision, as far as a refund needs it.
func (d *Decision) granted() (pglimit.Decision, *problem) {
	out := pglimit.Decision{Limiter: d.Limiter, Key: d.Key, Granted: d.Granted, At: d.At, Source: pglimit.FromDatabase}
	for _, source := range rate.Sources {
		if source.String() == d.Source {
			out.Source = source
		}
	}
	if out.Source == pglimit.FromRule { // which is refused, and has no limit
		return out, nil
	}
	limit, err := pglimit.ParseLimit(d.Limit)
	switch year := d.At.UTC().Year(); {
	case err != nil:
		return out, invalid("decision.limit", strings.TrimPrefix(bare(err), "limit "))
	case d.Granted < 1 || d.Granted > limit.Burst:
		return out, invalid("decision.granted", fmt.Sprintf("is %d: of a grant under %v it must be from 1 to %d",
			d.Granted, limit, limit.Burst))
	case out.Source == pglimit.FromFallback: // which is refused, and has no time
	case d.At.IsZero():
		return out, invalid("decision.at", "is missing: send the decision as it was answered")
	case year < 1970 || year > 2261: // a row stores nanoseconds since 1970
		return out, invalid("decision.at", fmt.Sprintf("is %s: it must be in the years 1970 to 2261",
			d.At.Format(time.RFC3339)))
	case d.WaitedMS < 0 || d.WaitedMS > maxWait.Milliseconds():
		return out, invalid("decision.waited_ms", fmt.Sprintf("is %d: it must be from 0 to %d", d.WaitedMS,
			maxWait.Milliseconds()))
	}
	// The wait was rounded up. A refund for tokens that were due earlier returns no more.
	out.Delay = time.Duration(max(0, d.WaitedMS-1)) * time.Millisecond
	out.Limit = limit
	return out, nil
}

// decisions is the answer to several requests, each by itself.
type decisions struct {
	Decisions []any `json:"decisions"` // Decision or failure
}

type failure struct {
	Limiter string   `json:"limiter"`
	Key     string   `json:"key"`
	Error   *problem `json:"error"`
}

// Group is the answer to several requests, all or nothing. If it is denied, allowed of each decision says whether this
// one had the tokens.
type Group struct {
	Allowed      bool       `json:"allowed"`
	RetryAfterMS int64      `json:"retry_after_ms"`
	Decisions    []Decision `json:"decisions"`
}

// NewGroup returns the decisions in JSON.
func NewGroup(g pglimit.Group) Group {
	out := Group{Allowed: g.Allowed, RetryAfterMS: milliseconds(g.RetryAfter)}
	for _, d := range g.Decisions {
		out.Decisions = append(out.Decisions, NewDecision(d))
	}
	return out
}

type resetDone struct {
	Limiter string `json:"limiter"`
	Key     string `json:"key"`
	Reset   bool   `json:"reset"`
}

type refunded struct {
	Limiter  string `json:"limiter"`
	Key      string `json:"key"`
	Refunded int64  `json:"refunded"`
}

// settled says what was charged in all.
type settled struct {
	Limiter string `json:"limiter"`
	Key     string `json:"key"`
	Charged int64  `json:"charged"`
}

// milliseconds of the duration, rounded up.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// seconds of the duration, rounded up, at least 1: for Retry-After.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}
