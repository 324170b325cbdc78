package bench

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/pglimit"
)

// hotKey is what four callers are answered of one key within a second: a denial every
// 10 µs, and the grants, at these times in microseconds. Their budget is of 8,000 events.
func hotKey(grants ...int64) []*history {
	const callers = 4
	kept := newBudget(8000, callers)
	histories := make([]*history, callers)
	for i := range histories {
		h := newHistory(kept)
		histories[i] = &h
	}
	random := rand.New(rand.NewPCG(1, 1))
	answer := func(at int64, allowed bool) {
		d := pglimit.Decision{Allowed: allowed, At: time.UnixMicro(at)}
		histories[random.IntN(callers)].answer(0, 0, &d)
	}
	for at := int64(0); at < 1_000_000; at += 10 {
		for len(grants) > 0 && grants[0] <= at {
			answer(grants[0], true)
			grants = grants[1:]
		}
		answer(at+5, false)
	}
	return histories
}

func everyMS(gap, late int64) (grants []int64) {
	for at := int64(0); at < 1_000_000; at += gap*1000 + late {
		grants = append(grants, at)
	}
	return grants
}

// 100,000 denials and room for 1,000: some of the denials stand for all, and
// no grant is missing.
func TestDenialsAreThinnedAndGrantsAreNot(t *testing.T) {
	t.Parallel()
	limit := pglimit.Every(10 * time.Millisecond)
	histories := hotKey(everyMS(10, 0)...)
	got := judge(histories, 1, limit)
	if got.AuditedGrants != 100 || got.OverTokens != 0 || got.DenialsNotDue != 0 || !got.Complete {
		t.Errorf("%+v; want all 100 grants, complete, no fault", got)
	}
	if got.AuditedDenials != 1000 || math.Abs(got.DenialSampling*float64(got.AuditedDenials)-100_000) > 1 {
		t.Errorf("%+v; want 1,000 denials, and that they are 1 of 100,000 / Denials", got)
	}
	if verdict := got.Judge(100_000); verdict != result.VerdictSampled {
		t.Errorf("the verdict is %q, want %q", verdict, result.VerdictSampled)
	}
	// As many of the first half second as of the second one.
	var halves [2]int
	for _, h := range histories {
		h.each(func(e event) {
			if e.kind == denied {
				halves[e.at/500_000_000]++
			}
		})
	}
	if ratio := float64(halves[0]) / float64(halves[1]); ratio < 0.7 || ratio > 1.4 {
		t.Errorf("%d denials of the first half and %d of the second are kept, want as many", halves[0], halves[1])
	}
}

// One grant too many, wherever it is, among 100,000 denials.
func TestThinningHidesNoGrant(t *testing.T) {
	t.Parallel()
	limit := pglimit.Every(10 * time.Millisecond)
	for late := int64(1); late < 100; late += 7 {
		grants := everyMS(10, 0)
		grants[late] -= 10 // microseconds too soon
		if got := judge(hotKey(grants...), 1, limit); got.OverTokens != 1 {
			t.Errorf("grant %d came too soon: over by %d, want 1", late, got.OverTokens)
		}
	}
}

// A bucket that is refilled 3 % too slowly: tokens are denied for 0.3 ms after they are
// due. 3,000 denials of 100,000 are at fault, and some of them are among those kept.
func TestThinnedDenialsShowAFault(t *testing.T) {
	t.Parallel()
	got := judge(hotKey(everyMS(10, 300)...), 1, pglimit.Every(10*time.Millisecond))
	if share := float64(got.DenialsNotDue) / float64(got.AuditedDenials); share < 0.015 || share > 0.06 {
		t.Errorf("%d of %d denials are not due, want 3 %%", got.DenialsNotDue, got.AuditedDenials)
	}
}

// Callers that are denied a million times do not use up the room of one that begins late.
func TestDenialsLeaveRoomForGrants(t *testing.T) {
	t.Parallel()
	kept := newBudget(1000, 2)
	busy, late := newHistory(kept), newHistory(kept)
	for at := range int64(1_000_000) {
		add(&busy, 0, denied, at)
	}
	for at := range int64(400) {
		add(&late, 0, granted, 2_000_000+at)
	}
	got := judge([]*history{&busy, &late}, 1, pglimit.Every(time.Millisecond))
	if got.AuditedGrants != 400 || !got.Complete {
		t.Errorf("%d grants audited, complete: %v; want all 400", got.AuditedGrants, got.Complete)
	}
}

// A denial from memory may say a time that is a round trip late. The next request of that
// caller may have been granted before that time, and be why others were denied.
func TestEstimatedTimesDoNotDateLostAnswers(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(10_000)
	a.estimated, b.estimated = true, true
	add(a, 1, granted, 100)
	add(a, 1, denied, 150) // in truth at 148
	a.lose(0)              // granted at 149, say
	add(b, 0, granted, 0)
	add(b, 0, denied, 149)
	got := judge([]*history{a, b}, 2, pglimit.Every(100*time.Millisecond))
	if got.DenialsNotDue != 0 || got.JudgedDenials != 1 || got.KeysWithLostAnswers != 1 {
		t.Errorf("%+v; want the denial of the second key judged, and not that at 149", got)
	}
}
