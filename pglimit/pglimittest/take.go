package pglimittest

import (
	"context"
	"maps"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Take decides the requests in their order, at one time.
func (s *Strategy) Take(ctx context.Context, _ rate.Session, requests []rate.Request) (decisions []rate.Decision, err error) {
	if err := rate.ValidateCall(s, requests); err != nil {
		return nil, err
	}
	err = s.locked(ctx, func(nowNS int64) (err error) {
		for len(requests) > 0 && err == nil {
			var d []rate.Decision
			n := groupOf(requests)
			switch r := &requests[0]; {
			case r.Group != 0:
				d = s.takeGroup(nowNS, requests[:n])
			case r.ID != "":
				d = make([]rate.Decision, 1)
				d[0], err = s.takeOnce(nowNS, r)
			case r.Block != nil:
				d = []rate.Decision{s.takeOrBlock(nowNS, r)}
			default:
				d = []rate.Decision{s.take(nowNS, r)}
			}
			decisions, requests = append(decisions, d...), requests[n:]
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return decisions, nil
}

// groupOf is how many of the first requests stand or fall together.
func groupOf(requests []rate.Request) int {
	n := 1
	for n < len(requests) && requests[0].Group != 0 && requests[n].Group == requests[0].Group {
		n++
	}
	return n
}

// windowEnd is when the limit's calendar window ends, or 0 if it has none. Check has tried the time zone.
func windowEnd(nowNS int64, limit rate.Limit) int64 {
	if limit.Calendar == "" {
		return 0
	}
	ends, _ := limit.WindowEnd(time.Unix(0, nowNS))
	return ends.UnixNano()
}

// corrected is what a request writes of a row, whatever is granted: see token_bucket_decide.sql.
func corrected(b bucket.Row, nowNS int64, limit rate.Limit) bucket.Row {
	switch {
	case b.FarAhead(nowNS):
		return b.Seen(nowNS, int64(limit.Token()), windowEnd(nowNS, limit))
	case b.InCalendar(): // nothing is refilled, too much or too little
		return b
	}
	return b.Stepped(nowNS)
}

// take decides one request.
func (s *Strategy) take(nowNS int64, r *rate.Request) rate.Decision {
	n := r.Bucket()
	row := s.buckets[n]
	b := row
	if r.Tokens > 0 { // corrected after a step of the clock: even a denial writes it
		b = corrected(b, nowNS, r.Limit)
	}
	endsNS, seen := windowEnd(nowNS, r.Limit), b
	if !b.InCalendar() && endsNS > 0 || b.FarAhead(nowNS) { // else a row tells when its own window ends
		seen = b.Seen(nowNS, int64(r.Limit.Token()), endsNS)
	}
	granted := seen.Grantable(nowNS, r)
	if granted > 0 {
		b = seen.Seen(nowNS, int64(r.Limit.Token()), endsNS).Take(nowNS, granted, r.Limit)
		seen = b
	}
	s.keep(n, row, b)
	d := seen.Decision(r, seen.Dated(nowNS), granted)
	d.HasRow = b.AtNS > 0 // a calendar window has a bucket before it has a row
	return d
}

// takeGroup looks at all buckets, and takes from them. If one denies, it takes it back.
func (s *Strategy) takeGroup(nowNS int64, group []rate.Request) []rate.Decision {
	looks, decisions := make([]rate.Decision, len(group)), make([]rate.Decision, len(group))
	before := make(map[rate.Bucket]bucket.Row)
	all := true
	for i := range group {
		n := group[i].Bucket()
		s.keep(n, s.buckets[n], corrected(s.buckets[n], nowNS, group[i].Limit)) // also of a group that falls
		if row, known := s.buckets[n]; known {
			before[n] = row
		}
		look := group[i]
		look.Tokens, look.Group, look.Ahead = 0, 0, 0
		looks[i] = s.take(nowNS, &look)
		decisions[i] = s.take(nowNS, &group[i])
		all = all && decisions[i].Granted > 0
	}
	if all && bucket.InTime(group, decisions) {
		return decisions
	}
	for i := range group {
		delete(s.buckets, group[i].Bucket())
	}
	maps.Copy(s.buckets, before)
	return looks
}
