package audit

import (
	"math"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

func (h *History) checkWindow(of window.Rule, limit rate.Limit, beside []rate.Limit) Report {
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
	deny := func(e entry, maybe int64) {
		if last.n > 0 && e.at-last.at < interval {
			return
		}
		counted.forget(e.at - length)
		if free := most - counted.total; free >= e.n && free-e.n >= maybe {
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
