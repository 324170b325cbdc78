package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// decisionJSON is a decision in JSON. Fractions of retry_after_ms are rounded up, so that waiting that long is enough.
type decisionJSON struct {
	Limiter      string    `json:"limiter"`
	Key          string    `json:"key"`
	Strategy     string    `json:"strategy"`
	Limit        string    `json:"limit"`
	Burst        int64     `json:"burst"`
	Tokens       int64     `json:"tokens"` // asked for; 0 for a peek
	Allowed      bool      `json:"allowed"`
	Granted      int64     `json:"granted"`
	Remaining    int64     `json:"remaining"`
	RetryAfterMS int64     `json:"retry_after_ms"`
	ResetAfterMS int64     `json:"reset_after_ms"`
	WaitedMS     int64     `json:"waited_ms"` // for its turn
	Contended    bool      `json:"contended"`
	Blocked      bool      `json:"blocked"` // for too many denials
	BlockedForMS int64     `json:"blocked_for_ms"`
	At           time.Time `json:"at"` // by the database's clock
}

func newDecisionJSON(b *bucketFlags, tokens int64, d pglimit.Decision) decisionJSON {
	return decisionJSON{
		Limiter:      d.Limiter,
		Key:          d.Key,
		Strategy:     b.strategy,
		Limit:        d.Limit.String(),
		Burst:        d.Limit.Burst,
		Tokens:       tokens,
		Allowed:      d.Allowed,
		Granted:      d.Granted,
		Remaining:    d.Remaining,
		RetryAfterMS: milliseconds(d.RetryAfter),
		ResetAfterMS: milliseconds(d.ResetAfter),
		WaitedMS:     milliseconds(d.Delay),
		Contended:    d.Contended,
		Blocked:      d.Blocked,
		BlockedForMS: milliseconds(d.BlockedFor),
		At:           d.At,
	}
}

func allowText(limit pglimit.Limit, d pglimit.Decision) string {
	switch {
	case d.Allowed && d.Delay > 0:
		return "allowed after " + shortDuration(d.Delay) + ": " + bucketText(limit, d)
	case d.Allowed:
		return "allowed: " + bucketText(limit, d)
	case d.Contended:
		return "denied: another request holds this key, try again"
	case d.Blocked:
		return "denied: blocked for " + shortDuration(d.BlockedFor)
	}
	return "denied: retry after " + shortDuration(d.RetryAfter)
}

// bucketText says how full the bucket is: "4 of 5 left, full again in 12s".
func bucketText(limit pglimit.Limit, d pglimit.Decision) string {
	text := fmt.Sprintf("%d of %d left", d.Remaining, limit.Burst)
	switch {
	case d.Blocked:
		text += ", blocked for " + shortDuration(d.BlockedFor)
	case !d.Allowed:
		text += ", the next in " + shortDuration(d.RetryAfter)
	}
	if d.ResetAfter > 0 {
		text += ", full again in " + shortDuration(d.ResetAfter)
	}
	return text
}

// groupJSON is the answer about several limits. Granted of each is 0 unless all allowed it; allowed then says whether
// this one had the tokens.
type groupJSON struct {
	Allowed      bool           `json:"allowed"`
	RetryAfterMS int64          `json:"retry_after_ms"` // until all have the tokens
	Limits       []decisionJSON `json:"limits"`
}

func newGroupJSON(b *bucketFlags, tokens int64, g pglimit.Group) groupJSON {
	answer := groupJSON{Allowed: g.Allowed, RetryAfterMS: milliseconds(g.RetryAfter)}
	for _, d := range g.Decisions {
		answer.Limits = append(answer.Limits, newDecisionJSON(b, tokens, d))
	}
	return answer
}

func groupText(g pglimit.Group) string {
	if !g.Allowed {
		return fmt.Sprintf("denied by %v: retry after %s", g.Denied.Limit, shortDuration(g.RetryAfter))
	}
	texts := []string{"allowed"}
	for _, d := range g.Decisions {
		texts = append(texts, fmt.Sprintf("  %v: %s", d.Limit, bucketText(d.Limit, d)))
	}
	return strings.Join(texts, "\n")
}
