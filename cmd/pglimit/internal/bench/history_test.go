package bench

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

func add(h *history, key uint32, k kind, atMS ...int64) {
	for _, at := range atMS {
		d := pglimit.Decision{Allowed: k == granted, Contended: k == contended, At: time.UnixMilli(at)}
		h.answer(key, 0, &d)
	}
}

// judge compares the histories with the limit, where each request costs one token.
func judge(histories []*history, keys int, limit pglimit.Limit) result.Audit {
	return collect(histories, keyNames(keys), limit, []scenario.Cost{{Tokens: 1, Share: 1}}).check()
}

func twoHistories(events int) (a, b *history) {
	kept := newBudget(events, 2)
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
	got := judge([]*history{a, b}, 4, limit)
	if got.OverTokens != 1 || got.DenialsNotDue != 2 || got.Audited != 8 || got.AuditedDenials != 4 || got.JudgedDenials != 3 || !got.Complete {
		t.Errorf("%+v; want over by 1, 2 not due, 8 audited, 4 of them denials, 3 of these judged, complete", got)
	}
}

// One caller's history ends because there is no room, the other's goes on: what is
// audited ends for both, or denials would not see the grants that they were due to.
func TestAuditEndsWhereTheFirstDecisionWasDropped(t *testing.T) {
	t.Parallel()
	const room = 800 // of each caller 350 grants
	a, b := twoHistories(room)
	limit := pglimit.Every(time.Millisecond)
	add(b, 1, granted, 0)
	for at := range int64(room) {
		add(a, 0, granted, at)
		if at%100 == 0 {
			add(b, 0, denied, at)
		}
	}
	got := judge([]*history{a, b}, 2, limit)
	const want = 1 + 350 + 4 // b's grant, a's, and the denials before a had no room
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
	got := judge([]*history{a, b}, 2, limit)
	if got.DenialsNotDue != 2 || got.KeysWithLostAnswers != 1 || got.JudgedDenials != 2 {
		t.Errorf("%+v; want 2 denials not due (at 150 of the first key, at 170 of the second), 2 judged, 1 key with a lost answer", got)
	}
}

// Whatever the number of callers, they keep no more than the budget together, and of
// the grants at the same speed seven eighths of it.
func TestBudgetIsOfEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ budget, callers int }{
		{1000, 16}, {16 * 5000, 5000}, {400_000, 500}, {100_000, 1}, {50_001, 7},
	} {
		kept := newBudget(c.budget, c.callers)
		histories := make([]*history, c.callers)
		for i := range histories {
			h := newHistory(kept)
			histories[i] = &h
		}
		for at := range int64(2*c.budget/c.callers + 1) { // twice as much as there is room for
			for _, h := range histories {
				add(h, 0, granted, at)
			}
		}
		total := 0
		for _, h := range histories {
			h.each(func(event) { total++ })
		}
		audited := judge(histories, 1, pglimit.PerSecond(1)).Audited
		if total > c.budget || audited > int64(total) || audited < int64(c.budget)*7/8-int64(c.callers) {
			t.Errorf("budget %d, %d callers: %d kept, %d audited", c.budget, c.callers, total, audited)
		}
	}
}
