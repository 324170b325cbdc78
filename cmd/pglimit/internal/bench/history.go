package bench

import (
	"math"
	"math/rand/v2"

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

// budget is how many events each caller of a run may keep. All have as much room, because they work at about the same
// speed, and the audit ends when the first finds none.
type budget struct {
	grants, denials int
	histories       uint64 // made so far
}

// newBudget divides that many events among the callers: seven of eight are grants.
func newBudget(events, callers int) *budget {
	return &budget{grants: (events - events/8) / callers, denials: events / 8 / callers}
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
	grants  []event
	room    int   // for grants
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
	h := history{room: b.grants, dropped: math.MaxInt64, most: b.denials}
	b.histories++
	h.random.Seed(b.histories, 0)
	return h
}

// answer records a decision that has a time.
func (h *history) answer(key uint32, cost uint8, d *pglimit.Decision) {
	e := event{at: d.At.UnixNano(), key: key, cost: cost, kind: kindOf(d)}
	if e.kind == granted || !h.estimated {
		h.newest = max(h.newest, e.at)
	}
	if e.kind == granted {
		if len(h.grants) < h.room {
			h.grants = append(h.grants, e)
		} else {
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
	for _, events := range [][]event{h.grants, h.sample} {
		for _, e := range events {
			do(e)
		}
	}
}
