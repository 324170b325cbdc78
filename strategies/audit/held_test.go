package audit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// In a span in which a loose limit held it counts to the end, and in one that begins later it does not.
func TestCheckHeld(t *testing.T) {
	t.Parallel()
	loose, tight := rate.PerSecond(100), rate.PerSecond(1).WithBurst(2)
	const second = int64(time.Second)
	held := []audit.Held{{Limit: tight, From: 5 * second, To: 20 * second}, {Limit: loose, From: 0, To: 5 * second}}
	for _, test := range []struct {
		grants map[int64]int64 // by the second
		want   int64
	}{
		{map[int64]int64{4: 100, 5: 100}, 0},
		{map[int64]int64{4: 100, 5: 101}, 1},
		{map[int64]int64{5: 100, 6: 2}, 0},     // the loose one held at 5 s
		{map[int64]int64{6: 3}, 1},             // and not later
		{map[int64]int64{1: 1, 6: 2, 7: 2}, 1}, // also behind a span in which it did
		{map[int64]int64{6: 2, 7: 1, 8: 1}, 0},
		{map[int64]int64{21: 2}, 2}, // none held
		{nil, 0},
	} {
		var h audit.History
		for at, n := range test.grants {
			h.Add(audit.Event{At: at * second, Granted: n})
		}
		if over := h.CheckHeld(held...); over.Tokens != test.want {
			t.Errorf("%v: %v, want %d", test.grants, over, test.want)
		}
	}
}

// The promise, word for word: for each span from a grant to a grant.
func TestCheckHeldAgreesWithBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.Int64Range(0, 60)
		var held []audit.Held
		for range rapid.IntRange(1, 4).Draw(t, "limits") {
			from := at.Draw(t, "from")
			limit := rate.Limit{Tokens: 1, Period: time.Duration(rapid.IntRange(1, 9).Draw(t, "token")), Burst: rapid.Int64Range(1, 9).Draw(t, "burst")}
			held = append(held, audit.Held{Limit: limit, From: from, To: from + at.Draw(t, "for")})
		}
		var h audit.History
		var events []audit.Event
		for range rapid.IntRange(1, 20).Draw(t, "grants") {
			events = append(events, audit.Event{At: at.Draw(t, "at"), Granted: rapid.Int64Range(1, 5).Draw(t, "granted")})
			h.Add(events[len(events)-1])
		}
		var worst int64
		for _, first := range events {
			for _, last := range events {
				var loosest rate.Limit
				token, granted := time.Hour, int64(0)
				for _, l := range held {
					if l.From <= last.At && l.To >= first.At {
						loosest.Burst, token = max(loosest.Burst, l.Limit.Burst), min(token, l.Limit.Token())
					}
				}
				for _, e := range events {
					if first.At <= e.At && e.At <= last.At {
						granted += e.Granted
					}
				}
				if first.At <= last.At {
					worst = max(worst, granted-loosest.Burst-(last.At-first.At)/int64(token))
				}
			}
		}
		if over := h.CheckHeld(held...); over.Tokens != worst {
			t.Fatalf("%v, and brute force finds %d", over, worst)
		}
	})
}
