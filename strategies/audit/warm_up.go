package audit

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
)

// checkWarmUp checks the grants against the limits, and the denials against what the grants cost. If the key was warmer
// at first than is supposed here, these cost less.
func (h *History) checkWarmUp(rule warmup.Rule, limit rate.Limit, beside []rate.Limit) Report {
	h.sort()
	grants := *h
	grants.denials = nil
	report := grants.checkBucket(limit, beside)
	if report.Err != nil || len(beside) > 0 {
		return report
	}
	var key warmup.State
	deny := func(e entry, maybe int64) {
		if key.FreeNS <= e.at && maybe == 0 {
			report.addNotDue(Denial{At: time.Unix(0, e.at).UTC(), Unit: e.n, Free: limit.Burst})
		}
	}
	h.replay(h.denials, func(grant entry) { key = key.Take(rule, limit, max(key.FreeNS, grant.at), grant.n) }, deny)
	return report
}
