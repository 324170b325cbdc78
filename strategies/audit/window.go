package audit

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// CheckBy checks the events of one bucket, in any order, by the rule of the strategy that decided, see
// [History.CheckBy].
func CheckBy(rule rate.Rule, limit rate.Limit, events []Event, beside ...rate.Limit) Report {
	var h History
	for _, e := range events {
		h.Add(e)
	}
	return h.CheckBy(rule, limit, beside...)
}

// CheckBy checks the history by the rule of the strategy that decided. That of strategies.SlidingWindow and
// strategies.SlidingLog is never more than Limit.Burst in any Limit.Window, wherever that begins; a denial was due if
// the tokens were not there with every cell counting whole until its last grant is a window old. With MinInterval, all of a
// grant that follows another too soon is over. With CountDenied, it is not checked whether denials were due. That of
// strategies.WarmUp is never more than the limit; a denial was due if the grants before it were not paid for, by a key
// that was cold at first. Any other rule is checked as by [History.Check].
//
// If other limits were in force beside this one, or instead of it, pass them too. Then the grants are checked against
// the largest burst in the shortest window, and not whether a denial was due.
func (h *History) CheckBy(rule rate.Rule, limit rate.Limit, beside ...rate.Limit) Report {
	if of, is := rule.(warmup.Rule); is {
		return h.checkWarmUp(of, limit, beside)
	}
	of, is := rule.(window.Rule)
	if !is {
		return h.Check(limit, beside...)
	}
	report, denials := h.begin(limit, beside)
	if report.Err != nil {
		return report
	}
	most, length := limit.Burst, int64(limit.Window())
	for _, other := range beside {
		most, length = max(most, other.Burst), min(length, int64(other.Window()))
	}
	if of.CountDenied {
		denials = nil
	}
	cell, interval := of.Cell(time.Duration(length)), int64(of.MinInterval)
	var last entry             // grant
	var grants, counted recent // the grants of the last window, and those of the cells that count
	deny := func(e entry) {
		if last.n > 0 && e.at-last.at < interval {
			return
		}
		counted.forget(e.at - length)
		if free := most - counted.total; free >= e.n {
			report.addNotDue(Denial{At: time.Unix(0, e.at).UTC(), Unit: e.n, Free: free})
		}
	}
	h.replay(denials, func(grant entry) {
		grants.forget(grant.at - length)
		counted.forget(grant.at - length)
		grants.add(grant, 1)
		counted.add(grant, cell)
		if over := grants.total - most; over > report.Over.Tokens {
			report.Over = Over{Tokens: over, Granted: grants.total, From: time.Unix(0, grants.entries[0].at).UTC(), To: time.Unix(0, grant.at).UTC()}
		}
		if last.n > 0 && grant.at-last.at < interval && grant.n > report.Over.Tokens {
			report.Over = Over{Tokens: grant.n, Granted: addSaturated(last.n, grant.n), From: time.Unix(0, last.at).UTC(), To: time.Unix(0, grant.at).UTC()}
		}
		last = grant
	}, deny)
	return report
}

// recent are grants in order of time, or the sums of cells at the time of their last grant; and their total.
type recent struct {
	entries []entry
	total   int64
}

// forget what was granted at that time or before.
func (r *recent) forget(at int64) {
	for len(r.entries) > 0 && r.entries[0].at <= at {
		r.total -= r.entries[0].n
		r.entries = r.entries[1:]
	}
}

// add a grant to the cell that it is in, of so many nanoseconds.
func (r *recent) add(e entry, cell int64) {
	e.n = min(e.n, math.MaxInt64-r.total)
	r.total += e.n
	if last := len(r.entries) - 1; last >= 0 && r.entries[last].at/cell == e.at/cell {
		r.entries[last] = entry{e.at, r.entries[last].n + e.n}
		return
	}
	r.entries = append(r.entries, e)
}
