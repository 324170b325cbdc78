package main

import (
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit"
)

func allowText(limit pglimit.Limit, d pglimit.Decision) string {
	switch {
	case d.Allowed && d.Delay > 0:
		return "allowed after " + shortDuration(d.Delay) + ": " + bucketText(limit, d)
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
