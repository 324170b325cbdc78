package bench

import (
	"math"
	"math/rand/v2"
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

// budget is how many more events all callers of a run may keep. A caller takes a chunk at a time, so that callers
// seldom contend for it.
type budget struct {
	chunk, half int64
	left        atomic.Int64
	histories   atomic.Uint64
}

// maxChunk is the most events that a caller takes at once.
const maxChunk = 1024

// newBudget makes a budget for that many events and callers. The audit ends when the first caller finds no room, so
// room that others have taken and not filled is lost. Chunks are so small that this is at most a quarter of the budget.
func newBudget(events, callers int) *budget {
	b := &budget{chunk: int64(min(max(events/(4*callers), 1), maxChunk)), half: int64(events / 2)}
	b.left.Store(int64(events))
	return b
}

// take returns how many more events the caller may keep, 0 if no more than leave are
// left.
func (b *budget) take(leave int64) int64 {
	if b.left.Load() <= leave {
		return 0
	}
	left := b.left.Add(-b.chunk)
	return max(0, b.chunk+min(0, left))
}

// history is the answers of one caller, as far as there is room.
//
// All grants are kept, because only together they show whether a limit was kept. A denial is checked against the grants
// and against no other denial. So denials may be left out: that raises no false alarm, it only gives a fault fewer
// chances to show. When room gets scarce, as with millions of denials from memory a second, a random half of the kept
// denials is dropped, and from then on half as many are kept. So 1 in some power of 2 is kept, evenly over the run. If
// 1 in 16 is kept, a fault that shows in 100 denials is missed 1 time in 600.
//
// If there is no room even for grants, later events are dropped, and the earliest of their times is noted. Before that
// time the histories of all callers together are complete, so the audit of that part is sound.
type history struct {
	budget  *budget
	chunks  [][]event
	filling int   // the chunk that is being filled
	room    int64 // in all chunks
	dropped int64 // the earliest At that was dropped

	every   int64 // 1 of so many denials is kept
	skip    int64 // denials to leave out before the next one is kept
	denials int64 // kept or not
	kept    int64 // denials in the chunks
	random  rand.PCG

	// estimated: a denial's At may come from memory, a round trip too late.
	estimated bool
	newest    int64            // the latest At of an answer that is not estimated
	lost      map[uint32]int64 // per key: a time before which no lost answer was decided
}

func newHistory(b *budget) history {
	h := history{budget: b, dropped: math.MaxInt64, every: 1}
	h.random.Seed(b.histories.Add(1), 0)
	return h
}

// answer records a decision that has a time.
func (h *history) answer(key uint32, cost uint8, d *pglimit.Decision) {
	k := kindOf(d)
	if k != granted {
		h.denials++
		if h.skip > 0 { // millions of times a second
			h.skip--
			return
		}
	}
	e := event{at: d.At.UnixNano(), key: key, cost: cost, kind: k}
	if k == granted || !h.estimated {
		h.newest = max(h.newest, e.at)
	}
	if h.dropped < math.MaxInt64 || !h.makeRoom() {
		h.dropped = min(h.dropped, e.at)
		return
	}
	h.chunks[h.filling] = append(h.chunks[h.filling], e)
	if k != granted {
		h.kept++
		h.skipSome()
	}
}

// keepNoDenials leaves out all denials, because they cannot be judged.
func (h *history) keepNoDenials() { h.skip = math.MaxInt64 }

// skipSome draws how many denials to leave out: every - 1 on average, at random so that
// no pattern of the load escapes.
func (h *history) skipSome() {
	if h.every > 1 {
		h.skip = int64(h.random.Uint64() % uint64(2*h.every-1)) //nolint:gosec // below twice every
	}
}

// makeRoom makes room for an event. It returns false if there is none.
func (h *history) makeRoom() bool {
	for h.filling < len(h.chunks) && len(h.chunks[h.filling]) == cap(h.chunks[h.filling]) {
		h.filling++
	}
	if h.filling < len(h.chunks) {
		return true
	}
	// The second half of the budget is for callers that have grants to keep, or nothing
	// yet.
	return h.extend(h.budget.take(h.budget.half)) || h.thin() || h.extend(h.budget.take(0))
}

func (h *history) extend(room int64) bool {
	if room > 0 {
		h.chunks = append(h.chunks, make([]event, 0, room))
		h.room += room
	}
	return room > 0
}

// thin drops half of the denials. It returns false if they are so few that it would
// happen again and again.
func (h *history) thin() bool {
	for freed := false; !freed; {
		if h.kept < h.room/4+1 {
			return false
		}
		freed = h.dropHalf()
	}
	return true
}

func (h *history) dropHalf() (freed bool) {
	h.every *= 2
	h.kept, h.filling = 0, len(h.chunks)
	for i, chunk := range h.chunks {
		rest := chunk[:0]
		for _, e := range chunk {
			switch {
			case e.kind == granted:
			case h.random.Uint64()%2 == 0:
				continue
			default:
				h.kept++
			}
			rest = append(rest, e)
		}
		if h.chunks[i] = rest; len(rest) < cap(rest) {
			h.filling = min(h.filling, i)
		}
	}
	return h.filling < len(h.chunks)
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
	for _, chunk := range h.chunks {
		for _, e := range chunk {
			do(e)
		}
	}
}
