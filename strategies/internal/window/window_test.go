package window_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// What a decision says of a later request, for as many tokens or others, is what the row says then, or less: never
// tokens that are not there, and a denial only with what it would be told.
func TestLaterAgreesWithTheRow(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 3))
	denied := 0
	for range 100_000 {
		rule := window.Rule{MinInterval: time.Duration(random.Int64N(15) * 1000), CountDenied: random.IntN(2) == 0}
		limit := rate.Per(1+random.Int64N(5), 10*time.Microsecond)
		now := int64(1_000_000)
		var row window.Row
		for range random.IntN(4) {
			row.Used = append(row.Used, random.Int64N(5)-2)
			row.LastNS = append(row.LastNS, now-1000*random.Int64N(12))
			row.WindowNS = append(row.WindowNS, int64(limit.Window()))
		}
		ask := func(unit, at int64) rate.Decision {
			d := rule.Decision(&row, &rate.Request{Limit: limit, Unit: unit}, at, 0)
			d.Limit = limit
			return d
		}
		unit, n := 1+random.Int64N(limit.Burst), 1+random.Int64N(limit.Burst)
		passed := time.Duration(random.IntN(12)) * time.Microsecond
		d, is := ask(unit, now), ask(n, now+int64(passed))
		told := rule.Later(d, unit, n, passed, 0)
		denies := rule.Denies(d, unit, n, passed)
		if denies {
			denied++
		}
		exact := told.RetryAfter == is.RetryAfter && told.ResetAfter == is.ResetAfter
		if told.Remaining > is.Remaining || told.RetryAfter < is.RetryAfter || told.ResetAfter < is.ResetAfter ||
			denies && (rule.CountDenied || is.RetryAfter == 0 || !exact) || n == unit && passed < d.RetryAfter && !denies && !rule.CountDenied {
			t.Fatalf("%+v in units of %d says that %v later, for %d, it is %+v (denied: %v), but it is %+v, of %+v by %+v", d, unit, passed, n, told, denies, is, row, rule)
		}
	}
	if denied < 1000 {
		t.Errorf("%d denied: this says little", denied)
	}
}
