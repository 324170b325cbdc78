package bucket

import "github.com/pglimit/ratelimit/pglimit/rate"

// GiveBack returns the bucket after the refund at nowNS, as give_back.sql does: it gets the
// tokens minus what was refilled since they were due, and what was reserved behind them. It gets
// nothing if its last write was at another price of a token, or if the grant is dated after both
// the row and the clock, because the clock has stepped back since.
func (b Row) GiveBack(nowNS int64, r *rate.Refund) Row {
	if b.InCalendar() {
		return b.giveBackCalendar(nowNS, r)
	}
	windowNS, backNS := int64(r.Limit.Window()), int64(RefillTime(r.Limit, r.Tokens))
	laterNS := max(b.AtNS, nowNS)
	if b.TokenNS != int64(r.Limit.Token()) || b.FullNS <= nowNS || laterNS < r.At.UnixNano() {
		return b
	}
	reservedNS := b.FullNS - windowNS + min(windowNS, b.LeasedNS) // the bucket has been taken from up to here
	usedNS := max(0, max(laterNS, reservedNS)-r.At.Add(r.Delay).UnixNano())
	if usedNS > 0 {
		backNS = min(backNS, windowNS) // more were due at different times
	}
	b.FullNS = max(nowNS, b.FullNS-max(0, backNS-usedNS))
	return b
}

// giveBackCalendar returns the row of a calendar window after a refund. Only what was granted in that window counts.
func (b Row) giveBackCalendar(nowNS int64, r *rate.Refund) Row {
	ends, err := r.Limit.WindowEnd(r.At)
	if r.Limit.Calendar == "" || err != nil || ends.UnixNano() != b.UntilNS || max(b.AtNS, nowNS) < r.At.UnixNano() {
		return b
	}
	b.FullNS = max(b.UntilNS, b.FullNS-r.Tokens)
	return b
}
