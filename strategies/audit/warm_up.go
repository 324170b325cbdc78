package audit

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
)

// checkWarmUp checks the grants against the limits, and the denials against what the grants cost. If the key was warmer
// at first than is supposed here, these cost less.
func (h *History) checkWarmUp(rule warmup.Rule, limit rate.Limit, beside []rate.Limit) Report {
	grants := *h
	grants.denials = nil
	report := grants.Check(limit, beside...)
	if report.Err != nil || len(beside) > 0 {
		return report
	}
	h.sort()
	var key warmup.State
	denials := h.denials
	deny := func(e entry) {
		if key.FreeNS <= e.at {
			report.addNotDue(Denial{At: time.Unix(0, e.at).UTC(), Unit: e.n, Free: limit.Burst})
		}
	}
	for _, grant := range h.grants {
		for ; len(denials) > 0 && denials[0].at < grant.at; denials = denials[1:] {
			deny(denials[0])
		}
		key = key.Take(rule, limit, max(key.FreeNS, grant.at), grant.n)
	}
	for _, e := range denials {
		deny(e)
	}
	return report
}
