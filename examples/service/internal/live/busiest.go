package live

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// span is the length of the windows of time in which a user's grants are counted.
const span = 10 * time.Second

// busiest counts what each bucket was granted, by the database's clock, whichever instance
// granted it.
type busiest map[bucket][]pglimit.Decision

type bucket struct{ limiter, key string }

// add grants and return the most tokens that a bucket got in a window that ends with one of them.
func (b busiest) add(grants []pglimit.Decision) (most int64) {
	for _, d := range grants {
		of := bucket{d.Limiter, d.Key}
		b[of] = append(b[of], d)
	}
	var newest time.Time
	for of, all := range b {
		slices.SortFunc(all, func(x, y pglimit.Decision) int { return x.At.Compare(y.At) })
		most = max(most, mostIn(all))
		b[of] = all
		if last := all[len(all)-1].At; last.After(newest) {
			newest = last
		}
	}
	for of, all := range b {
		b[of] = slices.DeleteFunc(all, func(d pglimit.Decision) bool { return newest.Sub(d.At) > 2*span })
		if len(b[of]) == 0 {
			delete(b, of)
		}
	}
	return most
}

// mostIn returns the most tokens of grants, which are sorted by time, in any window.
func mostIn(grants []pglimit.Decision) (most int64) {
	var first int
	var tokens int64
	for _, d := range grants {
		tokens += d.Granted
		for ; d.At.Sub(grants[first].At) > span; first++ {
			tokens -= grants[first].Granted
		}
		most = max(most, tokens)
	}
	return most
}

// allowed is how many tokens a limit allows in a window.
func allowed(limit pglimit.Limit) int64 {
	return limit.Burst + int64(float64(limit.Tokens)*span.Seconds()/limit.Period.Seconds())
}
