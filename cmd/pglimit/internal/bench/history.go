package bench

import (
	"math"
	"slices"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// event is a decision as the audit needs it, small because there are millions.
type event struct {
	at   int64 // the database's clock, in microseconds since 1970
	key  uint32
	kind kind
}

type kind uint8

const (
	granted kind = iota
	denied
	contended
)

// budget is how many more events all callers of a run may keep. They take of it by
// the chunk, so that they seldom meet there.
type budget struct {
	chunk int64
	left  atomic.Int64
}

// maxChunk is the most events that a caller takes at once.
const maxChunk = 1024

// newBudget of so many events for so many callers. The audit ends when the first
// caller finds none left, so what the others have taken by then and not filled is
// lost: chunks are so small that this is a quarter of the budget at most.
func newBudget(events, callers int) *budget {
	b := &budget{chunk: int64(min(max(events/(4*callers), 1), maxChunk))}
	b.left.Store(int64(events))
	return b
}

// take returns how many events more its caller may keep, 0 when the budget is used
// up.
func (b *budget) take() int64 {
	if b.left.Load() <= 0 {
		return 0
	}
	left := b.left.Add(-b.chunk)
	return max(0, b.chunk+min(0, left))
}

// history is what one caller was answered. Where the budget ends, what follows is
// dropped, but for the earliest time of what was: before that, the histories of
// all callers together are complete, and so the audit of that part is sound.
type history struct {
	budget  *budget
	full    [][]event
	last    []event
	dropped int64            // the earliest At that was dropped
	newest  int64            // the latest At that was answered
	lost    map[uint32]int64 // per key: no answer was lost that was decided before that time
}

func newHistory(b *budget) history {
	return history{budget: b, dropped: math.MaxInt64}
}

func (h *history) add(e event) {
	h.newest = max(h.newest, e.at)
	if len(h.last) == cap(h.last) && !h.grow() {
		h.dropped = min(h.dropped, e.at)
		return
	}
	h.last = append(h.last, e)
}

func (h *history) grow() bool {
	room := h.budget.take()
	if room == 0 {
		return false
	}
	if h.last != nil {
		h.full = append(h.full, h.last)
	}
	h.last = make([]event, 0, room)
	return true
}

// lose notes that a request may or may not have been granted. It was sent after
// the answer before it had come, and so decided after that.
func (h *history) lose(key uint32) {
	if h.lost == nil {
		h.lost = make(map[uint32]int64)
	}
	if _, already := h.lost[key]; !already {
		h.lost[key] = h.newest
	}
}

func (h *history) each(do func(event)) {
	for _, chunk := range append(slices.Clip(h.full), h.last) {
		for _, e := range chunk {
			do(e)
		}
	}
}

// check holds what all callers were answered against the limit, key by key.
func check(histories []*history, keys []string, limit pglimit.Limit, cost int64) Audit {
	end := int64(math.MaxInt64)
	lost := make(map[uint32]int64)
	for _, h := range histories {
		end = min(end, h.dropped)
		for key, since := range h.lost {
			if earlier, already := lost[key]; !already || since < earlier {
				lost[key] = since
			}
		}
	}
	result := Audit{Complete: end == math.MaxInt64, KeysWithLostAnswers: len(lost)}
	for key, events := range byKey(histories, len(keys), end) {
		if len(events) == 0 {
			continue
		}
		report := checkBucket(events, limit, cost, math.MaxInt64)
		result.Audited += int64(len(events))
		result.Denials += report.Denials
		if over := report.Over; over.Tokens > result.OverTokens {
			over.Bucket = keys[key]
			result.OverTokens, result.Worst = over.Tokens, over.String()
		}
		// A request whose answer was lost may have taken tokens that seem to have been
		// there for a later one.
		if since, some := lost[uint32(key)]; some {
			report = checkBucket(events, limit, cost, since)
		}
		result.DenialsNotDue += report.NotDueTotal
		result.JudgedDenials += report.Denials - report.Contended
	}
	return result
}

// checkBucket holds those of a key's events that were decided before end against the
// limit.
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
