package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

func add(h *history, key uint32, k kind, atMS ...int64) {
	for _, at := range atMS {
		h.add(event{at: at * 1000, key: key, kind: k})
	}
}

func twoHistories(events int) (a, b *history) {
	kept := newBudget(events)
	first, second := newHistory(kept), newHistory(kept)
	return &first, &second
}

// The faults of each key show, whichever callers were told what.
func TestAuditGoesByKey(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(10_000)
	limit := pglimit.Every(100 * time.Millisecond)
	add(a, 0, granted, 0, 100)
	add(b, 0, granted, 150) // 50 ms too soon: half a token, rounded up
	add(a, 1, granted, 0)
	add(b, 1, denied, 50, 120, 130) // the last two were not due
	add(b, 2, contended, 500)       // excused
	got := check([]*history{a, b}, keyNames(4), limit, 1)
	if got.OverTokens != 1 || got.DenialsNotDue != 2 || got.Audited != 8 || got.Denials != 4 || !got.Complete {
		t.Errorf("%+v; want over by 1, 2 not due, 8 audited, 4 of them denials, complete", got)
	}
}

// One caller's history ends because there is no room, the other's goes on: what is
// audited ends for both, or denials would not see the grants that they were due to.
func TestAuditEndsWhereTheFirstDecisionWasDropped(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(2 * chunkEvents)
	limit := pglimit.Every(time.Millisecond)
	add(b, 0, denied, 0) // takes its chunk
	for at := range int64(2 * chunkEvents) {
		add(a, 0, granted, at)
		add(b, 0, denied, at)
	}
	got := check([]*history{a, b}, keyNames(1), limit, 1)
	want := int64(chunkEvents-1)*2 + 1
	if got.Audited != want || got.Complete || got.DenialsNotDue != 0 || got.OverTokens != 0 {
		t.Errorf("%+v; want %d audited, incomplete, no fault", got, want)
	}
}

// A request without an answer may have taken the tokens that a later one was denied.
// What came before is judged all the same.
func TestLostAnswersExcuseLaterDenials(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(10_000)
	limit := pglimit.Every(100 * time.Millisecond)
	add(a, 0, granted, 0)
	add(a, 0, denied, 150, 160) // not due
	a.lose(0)                   // sent after the answer at 160
	add(b, 0, denied, 170, 300)
	add(b, 1, granted, 0)
	add(b, 1, denied, 170) // another key
	got := check([]*history{a, b}, keyNames(2), limit, 1)
	if got.DenialsNotDue != 2 || got.KeysWithLostAnswers != 1 {
		t.Errorf("%+v; want 2 denials not due (at 150 of the first key, at 170 of the second), 1 key with a lost answer", got)
	}
}

func TestNoAuditKeepsNothing(t *testing.T) {
	t.Parallel()
	h := newHistory(newBudget(0))
	add(&h, 0, granted, 1, 2, 3)
	h.each(func(event) { t.Error("an event was kept") })
}
