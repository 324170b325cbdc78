package bench

import (
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// answers are what the callers of a run were told, per key.
type answers struct {
	keys  []string
	limit pglimit.Limit
	rule  pglimit.Rule // of the strategy; nil: of a token bucket
	costs []scenario.Cost
	byKey [][]event
	end   int64 // of what is known completely
	lost  map[uint32]int64

	denials, kept int64 // of them all, and of them in byKey
}

func collect(histories []*history, keys []string, limit pglimit.Limit, costs []scenario.Cost) answers {
	a := answers{keys: keys, limit: limit, costs: costs, end: math.MaxInt64, lost: make(map[uint32]int64)}
	for _, h := range histories {
		a.end = min(a.end, h.dropped)
		a.denials, a.kept = a.denials+h.denials, a.kept+int64(len(h.sample))
		for key, since := range h.lost {
			if earlier, already := a.lost[key]; !already || since < earlier {
				a.lost[key] = since
			}
		}
	}
	a.byKey = byKey(histories, len(keys), a.end)
	return a
}

// check compares the answers with the limit, key by key.
func (a answers) check() result.Audit {
	out := result.Audit{Complete: a.end == math.MaxInt64, KeysWithLostAnswers: len(a.lost), DenialSampling: 1}
	if a.kept > 0 {
		out.DenialSampling = ratio(a.denials, a.kept)
	}
	for key, events := range a.byKey {
		if len(events) == 0 {
			continue
		}
		report := a.checkBucket(events, math.MaxInt64)
		out.Audited += int64(len(events))
		out.AuditedGrants += report.Grants
		out.AuditedDenials += report.Denials
		if over := report.Over; over.Tokens > out.OverTokens {
			over.Bucket = a.keys[key]
			out.OverTokens, out.Worst = over.Tokens, over.String()
		}
		// A request whose answer was lost may have taken tokens. A later denial would then seem undue.
		if since, some := a.lost[uint32(key)]; some {
			report = a.checkBucket(events, since)
		}
		out.DenialsNotDue += report.NotDueTotal
		out.JudgedDenials += report.Denials - report.Contended
	}
	return out
}

// checkBucket compares the events of one key that were decided before end with the limit.
func (a answers) checkBucket(events []event, end int64) audit.Report {
	var bucket audit.History
	for _, e := range events {
		if e.at >= end {
			continue
		}
		cost := a.costs[e.cost].Tokens
		decision := audit.Event{At: e.at, Wanted: cost, Unit: cost, Contended: e.kind == contended}
		if e.kind == granted {
			decision.Granted = cost
		}
		bucket.Add(decision)
	}
	return bucket.Check(a.rule, a.limit)
}

// byKey groups the events before end by key: a counting sort, because there may be
// millions of events and about as many keys.
func byKey(histories []*history, keys int, end int64) [][]event {
	starts := make([]int, keys+1)
	for _, h := range histories {
		h.each(func(e event) {
			if e.at < end {
				starts[e.key+1]++
			}
		})
	}
	for key := range keys {
		starts[key+1] += starts[key]
	}
	all := make([]event, starts[keys])
	grouped := make([][]event, keys)
	for key := range grouped {
		grouped[key] = all[starts[key]:starts[key]:starts[key+1]]
	}
	for _, h := range histories {
		h.each(func(e event) {
			if e.at < end {
				grouped[e.key] = append(grouped[e.key], e)
			}
		})
	}
	return grouped
}
