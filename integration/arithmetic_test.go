package integration

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
)

// The arithmetic of the schema is that of exact fractions, for any limits and any
// times, and nowhere overflows. (The Go side of it is tested in strategies.)
func TestSchemaArithmeticIsExact(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limits := rapid.Custom(func(t *rapid.T) pglimit.Limit {
		return pglimit.Limit{
			Tokens: rapid.Int64Range(1, 1_000_000_000).Draw(t, "tokens"),
			Period: time.Duration(rapid.Int64Range(1, int64(365*24*time.Hour)).Draw(t, "period")),
			Burst:  rapid.Int64Range(1, 1_000_000_000).Draw(t, "burst"),
		}
	}).Filter(func(l pglimit.Limit) bool { return l.Validate() == nil })
	rapid.Check(t, func(t *rapid.T) {
		old, limit := limits.Draw(t, "old"), limits.Draw(t, "new")
		if rapid.Bool().Draw(t, "unchanged") {
			limit = old
		}
		oldToken, oldRefill := old.Parts()
		token, refill := limit.Parts()
		debt := rapid.Int64Range(0, oldToken*old.Capacity()).Draw(t, "debt")
		at := rapid.Int64Range(0, 1<<52).Draw(t, "at")
		now := rapid.OneOf(rapid.Int64Range(0, 1<<52), rapid.Map(rapid.Int64Range(-1000, 1_000_000), func(d int64) int64 { return at + d })).Draw(t, "now")
		unit := rapid.Int64Range(1, limit.Capacity()).Draw(t, "unit")
		want := rapid.Int64Range(0, 1<<62).Draw(t, "want")

		var owed, grantable int64
		err := pool.QueryRow(t.Context(), `select owed, pglimit.grantable_v1($10, $9, owed, $6, $8)
			from (select pglimit.owed_v1($1, $2, $3, $4, $5, $6, $7, $8) as owed) o`,
			debt, at, oldToken, oldRefill, now, token, refill, limit.Capacity(), unit, want).Scan(&owed, &grantable)
		if err != nil {
			t.Fatal(err)
		}

		// Either all flows back as the old limit says, or, from at most the new
		// burst, as the new one does.
		rescaled := func(debt int64) int64 {
			parts, rest := new(big.Int).QuoRem(new(big.Int).Mul(big.NewInt(debt), big.NewInt(token)), big.NewInt(oldToken), new(big.Int))
			if rest.Sign() > 0 {
				parts.Add(parts, big.NewInt(1))
			}
			if !parts.IsInt64() {
				return math.MaxInt64
			}
			return parts.Int64()
		}
		drained := func(debt, refill int64) int64 {
			back := new(big.Int).Mul(big.NewInt(max(0, now-at)), big.NewInt(refill))
			if back.Cmp(big.NewInt(debt)) > 0 {
				return 0
			}
			return debt - back.Int64()
		}
		wantOwed := min(rescaled(drained(debt, oldRefill)), drained(min(limit.Capacity()*token, rescaled(debt)), refill))
		if owed != wantOwed {
			t.Fatalf("owed %d, want %d", owed, wantOwed)
		}
		if most := min(want, (limit.Capacity()*token-owed)/token); grantable != most-most%unit {
			t.Fatalf("grantable %d of %d in units of %d", grantable, most, unit)
		}
	})
}
