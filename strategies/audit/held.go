package audit

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Held is a limit, and when it held: from From to To, both included, in nanoseconds since 1970.
type Held struct {
	Limit    rate.Limit
	From, To int64
}

// CheckHeld checks the grants against limits that replace each other: in any span of time, from a grant to
// a grant, no more is granted than the loosest burst and the loosest rate allow of the limits that held at some time
// of the span. It returns the worst span; its Tokens are 0 if none is over.
//
// If a limit that was replaced may bind for a while, such as until every process knows of the change, its To has to
// include that. The limits must be valid. It takes time n × m, where m is how many grants it takes until the bucket
// is full.
func (h *History) CheckHeld(limits ...Held) (worst Over) {
	h.sort()
	limits = slices.SortedFunc(slices.Values(limits), func(a, b Held) int { return cmp.Compare(a.From, b.From) })
	for i, first := range h.grants {
		var burst, granted int64
		token, later := int64(math.MaxInt64), limits
		for _, g := range h.grants[i:] {
			for ; len(later) > 0 && later[0].From <= g.at; later = later[1:] {
				if l := later[0]; l.To >= first.at {
					burst, token = max(burst, l.Limit.Burst), min(token, int64(l.Limit.Token()))
				}
			}
			back := (g.at - first.at) / token
			if granted > 0 && back >= granted { // full again, so the spans that begin here are worse
				break
			}
			granted = addSaturated(granted, g.n)
			if over := granted - burst - back; over > worst.Tokens {
				worst = Over{Tokens: over, Granted: granted, From: time.Unix(0, first.at).UTC(), To: time.Unix(0, g.at).UTC()}
			}
		}
	}
	return worst
}
