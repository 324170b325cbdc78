package bucket

import "github.com/pglimit/ratelimit/pglimit/rate"

// WithMore returns the decision as it would read for r if the bucket held that many more tokens.
func WithMore(d rate.Decision, tokens int64, r *rate.Request) rate.Decision {
	if tokens > 0 {
		if more := r.Limit.RefillTime(tokens); d.Delay >= more { // the bucket owed more than its burst
			d.Delay -= more
		} else {
			d.Remaining = min(d.Remaining+tokens-r.Limit.Refilled(d.Delay), r.Limit.Burst)
			d.Delay = 0
		}
		d.ResetAfter = max(0, d.ResetAfter-r.Limit.RefillTime(tokens))
	}
	d.RetryAfter = 0
	if d.Remaining < r.Unit {
		d.RetryAfter = max(0, d.ResetAfter-r.Limit.RefillTime(r.Limit.Burst-r.Unit))
	}
	return d
}
