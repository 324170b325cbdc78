package main

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// decisionJSON is a decision for machines. A client that waits retry_after_ms has
// waited long enough: fractions are rounded up.
type decisionJSON struct {
	Limiter      string    `json:"limiter"`
	Key          string    `json:"key"`
	Strategy     string    `json:"strategy"`
	Limit        string    `json:"limit"`
	Burst        int64     `json:"burst"`
	Cost         int64     `json:"cost"` // 0 for a peek
	Allowed      bool      `json:"allowed"`
	Granted      int64     `json:"granted"`
	Remaining    int64     `json:"remaining"`
	RetryAfterMS int64     `json:"retry_after_ms"`
	ResetAfterMS int64     `json:"reset_after_ms"`
	Contended    bool      `json:"contended"`
	At           time.Time `json:"at"` // by the database's clock
}

func newDecisionJSON(b *bucketFlags, key string, limit pglimit.Limit, cost int64, d pglimit.Decision) decisionJSON {
	return decisionJSON{
		Limiter:      b.limiter,
		Key:          key,
		Strategy:     b.strategy,
		Limit:        limit.String(),
		Burst:        limit.Burst,
		Cost:         cost,
		Allowed:      d.Allowed,
		Granted:      d.Granted,
		Remaining:    d.Remaining,
		RetryAfterMS: milliseconds(d.RetryAfter),
		ResetAfterMS: milliseconds(d.ResetAfter),
		Contended:    d.Contended,
		At:           d.At,
	}
}

func allowText(limit pglimit.Limit, d pglimit.Decision) string {
	switch {
	case d.Allowed:
		return "allowed: " + bucketText(limit, d)
	case d.Contended:
		return "denied: another request holds this key, try again"
	}
	return "denied: retry after " + shortDuration(d.RetryAfter)
}

// bucketText says how full the bucket is: "4 of 5 left, full again in 12s".
func bucketText(limit pglimit.Limit, d pglimit.Decision) string {
	text := fmt.Sprintf("%d of %d left", d.Remaining, limit.Burst)
	if !d.Allowed {
		text += ", the next in " + shortDuration(d.RetryAfter)
	}
	if d.ResetAfter > 0 {
		text += ", full again in " + shortDuration(d.ResetAfter)
	}
	return text
}
