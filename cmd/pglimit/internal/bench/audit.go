package bench

import (
	"math"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// check compares the answers that all callers got with the limit, key by key.
func check(histories []*history, keys []string, limit pglimit.Limit, cost int64) Audit {
	end := int64(math.MaxInt64)
	lost := make(map[uint32]int64)
	var denials, kept int64
	for _, h := range histories {
		end = min(end, h.dropped)
		denials, kept = denials+h.denials, kept+h.kept
		for key, since := range h.lost {
			if earlier, already := lost[key]; !already || since < earlier {
				lost[key] = since
			}
		}
	}
	result := Audit{Complete: end == math.MaxInt64, KeysWithLostAnswers: len(lost), DenialSampling: 1}
	if kept > 0 {
		result.DenialSampling = ratio(denials, kept)
	}
	for key, events := range byKey(histories, len(keys), end) {
		if len(events) == 0 {
			continue
		}
		report := checkBucket(events, limit, cost, math.MaxInt64)
		result.Audited += int64(len(events))
		result.Grants += report.Grants
		result.Denials += report.Denials
		if over := report.Over; over.Tokens > result.OverTokens {
			over.Bucket = keys[key]
			result.OverTokens, result.Worst = over.Tokens, over.String()
		}
		// A request whose answer was lost may have taken tokens. They would then seem to
		// have been there for a later request.
		if since, some := lost[uint32(key)]; some {
			report = checkBucket(events, limit, cost, since)
		}
		result.DenialsNotDue += report.NotDueTotal
		result.JudgedDenials += report.Denials - report.Contended
	}
	return result
}

// checkBucket compares the events of one key that were decided before end with the limit.
func checkBucket(events []event, limit pglimit.Limit, cost, end int64) audit.Report {
	var bucket audit.History
	for _, e := range events {
		if e.at >= end {
			continue
		}
		decision := audit.Event{At: e.at, Wanted: cost, Unit: cost, Contended: e.kind == contended}
		if e.kind == granted {
			decision.Granted = cost
		}
		bucket.Add(decision)
	}
	return bucket.Check(limit)
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
