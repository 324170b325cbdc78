package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit"
)

// event is a decision as the audit needs it. It is small, because there are millions.
type event struct {
	at   int64 // the database's clock, in nanoseconds since 1970
	key  uint32
	cost uint8 // its number
	kind kind
}

type kind uint8

const (
	granted kind = iota
	denied
	contended
)

func kindOf(d *pglimit.Decision) kind {
	switch {
	case d.Allowed:
		return granted
	case d.Contended:
		return contended
	}
	return denied
}

// budget is how many events all callers of a run may keep: seven of eight are grants, of which callers take room for
// some at a time, so that they seldom contend for it. Each caller has as much room for denials as the others.
type budget struct {
	grants    atomic.Int64 // that are left
	chunk     int64
	denials   int // of each caller
	histories atomic.Uint64
}

// maxChunk is the most room for grants that a caller takes at once.
const maxChunk = 1024

// newBudget makes a budget for that many events and callers. The audit ends when the first caller finds no room, so
// room that others have taken and not filled is lost. Chunks are so small that this is at most a quarter of it.
func newBudget(events, callers int) *budget {
	grants := events - events/8
	b := &budget{chunk: int64(min(max(grants/(4*callers), 1), maxChunk)), denials: events / 8 / callers}
	b.grants.Store(int64(grants))
	return b
}

// history is the answers of one caller, as far as there is room.
//
// All grants are kept, because only together they show whether a limit was kept. If there is no room for one, later ones
// are dropped, and the earliest of their times is noted. Before that time the histories of all callers together are
// complete, so the audit of that part is sound.
//
// A denial is checked against the grants and against no other denial. So denials may be left out: that raises no false
// alarm, it only gives a fault fewer chances to show. Of more than there is room for, a random sample is kept (reservoir
// sampling: Vitter, Random Sampling with a Reservoir, algorithm R), evenly over the run. If 1 in 16 is kept, a fault
// that shows in 100 denials is missed 1 time in 600.
type history struct {
	budget  *budget
	grants  [][]event
	dropped int64 // the earliest At of a grant that was dropped

	sample  []event // of the denials
	most    int     // of the sample
	denials int64   // kept or not
	random  rand.PCG

	// estimated: a denial's At may come from memory, a round trip too late.
	estimated bool
	newest    int64            // the latest At of an answer that is not estimated
	lost      map[uint32]int64 // per key: a time before which no lost answer was decided
}

func newHistory(b *budget) history {
	h := history{budget: b, dropped: math.MaxInt64, most: b.denials}
	h.random.Seed(b.histories.Add(1), 0)
	return h
}

// answer records a decision that has a time.
func (h *history) answer(key uint32, cost uint8, d *pglimit.Decision) {
	e := event{at: d.At.UnixNano(), key: key, cost: cost, kind: kindOf(d)}
	if e.kind == granted || !h.estimated {
		h.newest = max(h.newest, e.at)
	}
	if e.kind == granted {
		if h.dropped < math.MaxInt64 || !h.keep(e) {
			h.dropped = min(h.dropped, e.at)
		}
		return
	}
	h.denials++
	if len(h.sample) < h.most {
		h.sample = append(h.sample, e)
	} else if at := h.random.Uint64() % uint64(h.denials); at < uint64(h.most) { //nolint:gosec // not negative
		h.sample[at] = e
	}
}

// keepNoDenials leaves out all denials, because they cannot be judged.
func (h *history) keepNoDenials() { h.most = 0 }

// keep a grant. It returns false if there is no room.
func (h *history) keep(e event) bool {
	last := len(h.grants) - 1
	if last < 0 || len(h.grants[last]) == cap(h.grants[last]) {
		room := h.budget.chunk + min(0, h.budget.grants.Add(-h.budget.chunk))
		if room <= 0 {
			return false
		}
		h.grants = append(h.grants, make([]event, 0, room))
		last++
	}
	h.grants[last] = append(h.grants[last], e)
	return true
}

// lose notes that a request may have been granted. It was sent after the previous answer
// came, so it was decided after that.
func (h *history) lose(key uint32) {
	if h.lost == nil {
		h.lost = make(map[uint32]int64)
	}
	if _, already := h.lost[key]; !already {
		h.lost[key] = h.newest
	}
}

func (h *history) each(do func(event)) {
	for _, events := range append(slices.Clone(h.grants), h.sample) {
		for _, e := range events {
			do(e)
		}
	}
}
