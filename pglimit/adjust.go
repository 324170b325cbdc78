package pglimit

import (
	"context"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
)

// adjustedRetry is the RetryAfter of a request that the share could never grant: until then it may have grown.
const adjustedRetry = time.Second

// unadjusted gives the units the share of their limits that holds now. It answers those that could never be granted
// by it, and returns the others.
func (l *Limiter) unadjusted(units []*unit) []*unit {
	if l.share == nil {
		return units
	}
	return unanswered(units, l.adjust)
}

// adjust takes the share of each limit of the unit. It answers the unit if one of the requests is for more than that ever grants.
func (l *Limiter) adjust(u *unit) (answered bool) {
	percent := l.share.Percent()
	if percent == adjust.Whole {
		return false
	}
	fits := func(r *Request) bool { return percent > 0 && r.Unit <= r.Limit.Burst }
	for i := range u.Requests {
		r := &u.Requests[i]
		if percent > 0 {
			r.Limit = bucket.Share(r.Limit, percent, adjust.Whole)
			r.Ahead = min(r.Ahead, MaxWindow-r.Limit.Window())
		}
		answered = answered || !fits(r)
	}
	for i := range u.Requests {
		if !answered {
			continue
		}
		u.Decisions[i] = Decision{Allowed: true, Source: FromAdjust} // the other buckets of a group may have the tokens
		if !fits(&u.Requests[i]) {
			u.Decisions[i] = Decision{RetryAfter: adjustedRetry, ResetAfter: adjustedRetry, Source: FromAdjust}
		}
	}
	return answered
}

// logAdjust says that Config.Adjust fails, or that it does no longer.
func (l *Limiter) logAdjust(percent int64, err error) {
	switch {
	case l.config.Logger == nil:
	case err != nil:
		l.failures.log(context.Background(), slog.LevelError, "pglimit: Config.Adjust gives no share of the limits: that of before holds",
			slog.Int64("percent", percent), slog.String("error", err.Error()))
	default:
		l.failures.log(context.Background(), slog.LevelInfo, "pglimit: Config.Adjust gives a share of the limits again")
	}
}
