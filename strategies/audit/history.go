package audit

import (
	"cmp"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// History has the events of one bucket, in any order. It keeps 16 bytes for each grant and
// each denial, but only counts denials that are excused.
//
// The zero value is an empty history. It is not safe for concurrent use: give each
// goroutine its own and merge them.
type History struct {
	grants  []entry // of n tokens
	denials []entry // of one more unit of n tokens, after the tokens that were granted

	denied, contended int64 // decisions that granted nothing

	unknown []entry // n tokens may have been taken then or later
}

// entry is a grant or a denial of n tokens, at a time in nanoseconds since 1970.
type entry struct{ at, n int64 }

func (e entry) compare(other entry) int {
	return cmp.Or(cmp.Compare(e.at, other.at), cmp.Compare(e.n, other.n))
}

// Add adds an event.
func (h *History) Add(e Event) {
	missed := e.missed()
	if e.Unknown {
		h.unknown = append(h.unknown, entry{e.At, max(0, e.Wanted)})
		return
	}
	if e.Granted > 0 {
		h.grants = append(h.grants, entry{e.At, e.Granted})
	} else if missed > 0 {
		h.denied++
		if e.Contended {
			h.contended++
		}
	}
	if missed > 0 && !e.Contended {
		h.denials = append(h.denials, entry{e.At, missed})
	}
}

// Merge adds the events of the other history, which stays as it is.
func (h *History) Merge(other *History) {
	h.grants = append(h.grants, other.grants...)
	h.denials = append(h.denials, other.denials...)
	h.unknown = append(h.unknown, other.unknown...)
	h.denied += other.denied
	h.contended += other.contended
}

func (h *History) sort() {
	for _, entries := range [][]entry{h.grants, h.denials, h.unknown} {
		if !slices.IsSortedFunc(entries, entry.compare) {
			slices.SortFunc(entries, entry.compare)
		}
	}
}

// Histories has the histories of many buckets of the same limit. Each bucket has a name: its
// key, or limiter and key. The zero value is ready to use, though not concurrently.
type Histories struct {
	of map[string]*History
}

// Record adds a decision about a bucket: see [FromDecision].
func (h *Histories) Record(bucket string, tokens, unit int64, decision rate.Decision) {
	h.history(bucket).Add(FromDecision(tokens, unit, decision))
}

// Add adds an event of a bucket.
func (h *Histories) Add(bucket string, e Event) { h.history(bucket).Add(e) }

// Merge adds the histories that another goroutine, or process, has recorded. The other
// Histories stay as they are.
func (h *Histories) Merge(other *Histories) {
	for bucket, history := range other.of {
		h.history(bucket).Merge(history)
	}
}

// Check checks every bucket as [History.Check] does.
func (h *Histories) Check(rule rate.Rule, limit rate.Limit, beside ...rate.Limit) Report {
	report := Report{Err: validate(limit, beside)}
	for bucket, history := range h.of {
		report.Add(history.Check(rule, limit, beside...).named(bucket))
	}
	return report
}

func (h *Histories) history(bucket string) *History {
	history := h.of[bucket]
	if history == nil {
		if h.of == nil {
			h.of = make(map[string]*History)
		}
		history = new(History)
		h.of[bucket] = history
	}
	return history
}
