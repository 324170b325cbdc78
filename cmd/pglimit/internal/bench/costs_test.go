package bench

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// mixed are requests of 1 token and of 5.
var mixed = []scenario.Cost{{Tokens: 1, Share: 3}, {Tokens: 5, Share: 1}}

func addCosting(h *history, key uint32, cost uint8, k kind, atMS ...int64) {
	for _, at := range atMS {
		h.answer(key, cost, &pglimit.Decision{Allowed: k == granted, Contended: k == contended, At: time.UnixMilli(at)})
	}
}

func judgeCosts(limit pglimit.Limit, h ...*history) answers {
	return collect(h, keyNames(3), limit, mixed)
}

// A grant of 5 tokens counts 5, and a denial of 5 is due while there are 4.
func TestAuditCountsTokens(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(10).WithBurst(10)
	for name, c := range map[string]struct {
		cost         uint8
		kind         kind
		at           int64
		over, notDue int64
	}{
		"another one before a token is there":    {0, granted, 99, 1, 0}, // rounded up
		"a grant of 5, when one token is there":  {1, granted, 100, 4, 0},
		"a denial of 5, when one token is there": {1, denied, 101, 0, 0},
		"a denial of 1, when one token is there": {0, denied, 101, 0, 1},
		"a denial of 5, when 5 are there":        {1, denied, 501, 0, 1},
	} {
		a, b := twoHistories(1000)
		addCosting(a, 0, 1, granted, 0)
		if c.at > 0 {
			addCosting(b, 0, 1, granted, 0)
		}
		addCosting(b, 0, c.cost, c.kind, c.at)
		got := judgeCosts(limit, a, b).check()
		if got.OverTokens != c.over || got.DenialsNotDue != c.notDue {
			t.Errorf("%s: over by %d, %d denials not due; want %d, %d", name, got.OverTokens, got.DenialsNotDue, c.over, c.notDue)
		}
	}
}

func TestAuditNamesTheWorstKey(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(1000)
	addCosting(a, 0, 0, granted, 0, 0, 0)
	addCosting(b, 1, 1, granted, 0, 0)
	addCosting(a, 2, 0, granted, 0, 0, 0, 0)
	got := judgeCosts(pglimit.Every(time.Hour).WithBurst(2), a, b).check()
	if got.OverTokens != 8 || !strings.Contains(got.Worst, "user:1") {
		t.Errorf("over by %d, %q; want 8 of user:1", got.OverTokens, got.Worst)
	}
}

// Of several lost answers the earliest counts, whichever caller lost it.
func TestEarliestLostAnswerCounts(t *testing.T) {
	t.Parallel()
	limit := pglimit.Every(100 * time.Millisecond)
	for _, swapped := range []bool{false, true} {
		a, b := twoHistories(1000)
		add(a, 0, granted, 0)
		a.lose(0)             // after 0
		add(b, 0, denied, 50) // due, but after the first loss
		add(b, 1, granted, 300)
		b.lose(0) // after 300
		add(b, 0, denied, 150, 400)
		histories := []*history{a, b}
		if swapped {
			slices.Reverse(histories)
		}
		if got := judge(histories, 2, limit); got.DenialsNotDue != 0 || got.KeysWithLostAnswers != 1 || got.JudgedDenials != 0 {
			t.Errorf("%+v; want no denial judged after the first loss", got)
		}
	}
}

func TestNothingWasDecided(t *testing.T) {
	t.Parallel()
	a, b := twoHistories(100)
	got := judge([]*history{a, b}, 3, pglimit.PerSecond(1))
	if got != (result.Audit{Complete: true, DenialSampling: 1}) || got.Judge(0) != result.VerdictNothing {
		t.Errorf("%+v, %s", got, got.Judge(0))
	}
}
