package audit

import (
	"cmp"
	"math"
	"slices"

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
// include that. The limits must be valid. Of n grants and m different limits it takes time n log n + n × m²; of more
// than fifty, the grants are held against the loosest burst and rate of all, whenever they held.
func (h *History) CheckHeld(limits ...Held) (worst Over) {
	h.sort()
	if len(limits) > 50 {
		loosest := walk{token: math.MaxInt64}
		for _, l := range limits {
			loosest.burst, loosest.token = max(loosest.burst, l.burst()), min(loosest.token, l.token())
		}
		for _, g := range h.grants {
			loosest.grant(g)
		}
		return loosest.over()
	}
	tried := make(map[[2]int64]bool)
	for _, a := range append(slices.Clone(limits), none) {
		for _, b := range append(slices.Clone(limits), none) {
			burst, token := max(a.burst(), 0), b.token()
			if tried[[2]int64{burst, token}] {
				continue
			}
			tried[[2]int64{burst, token}] = true
			// The loosest that hold in a span are these, or it begins or ends while a looser one holds: others judge that.
			w := walk{token: token, burst: burst}
			var looser []Held
			for _, l := range limits {
				if l.burst() > burst || l.token() < token {
					looser = append(looser, l)
				}
			}
			slices.SortFunc(looser, func(a, b Held) int { return cmp.Compare(a.From, b.From) })
			for _, g := range h.grants {
				inside := false
				for ; len(looser) > 0 && looser[0].From <= g.at; looser = looser[1:] {
					w.owes = debt{} // a span may not contain it
					if looser[0].To >= g.at {
						inside = true
						break
					}
				}
				if !inside {
					w.grant(g)
				}
			}
			if over := w.over(); over.Tokens > worst.Tokens {
				worst = over
			}
		}
	}
	return worst
}

// none is the limit of a time in which no limit held: it lets nothing through.
var none = Held{}

func (h Held) burst() int64 { return h.Limit.Burst }

func (h Held) token() int64 {
	if h.Limit.Tokens == 0 {
		return math.MaxInt64
	}
	return int64(h.Limit.Token())
}
