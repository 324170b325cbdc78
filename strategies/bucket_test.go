package strategies

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
)

// anyLimit is a valid limit, extreme ones included.
func anyLimit(t *rapid.T, name string) pglimit.Limit {
	return rapid.Custom(func(t *rapid.T) pglimit.Limit {
		return pglimit.Limit{
			Tokens: rapid.Int64Range(1, 1_000_000_000).Draw(t, "tokens"),
			Period: time.Duration(rapid.Int64Range(1, int64(365*24*time.Hour)).Draw(t, "period")),
			Burst:  rapid.Int64Range(1, 1_000_000_000).Draw(t, "burst"),
		}
	}).Filter(func(l pglimit.Limit) bool { return l.Validate() == nil }).Draw(t, name)
}

func anyBucket(t *rapid.T) bucket {
	scale := scaleOf(anyLimit(t, "limit it was written under"))
	return bucket{
		debt:  rapid.Int64Range(0, scale.capacity()).Draw(t, "debt"),
		atUS:  rapid.Int64Range(0, 1<<52).Draw(t, "at"),
		scale: scale,
	}
}

// The debt that is left is what exact fractions say, rounded up to a part of the
// new limit, by the old limit or by the new one.
func TestSettleIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := anyBucket(t)
		to := b.scale
		if rapid.Bool().Draw(t, "limit changed") {
			to = scaleOf(anyLimit(t, "new limit"))
		}
		now := rapid.OneOf(
			rapid.Int64Range(0, 1<<52),
			rapid.Map(rapid.Int64Range(-1000, 1_000_000), func(d int64) int64 { return b.atUS + d }),
		).Draw(t, "now")

		elapsed := new(big.Rat).SetInt64(max(0, now-b.atUS))
		// drained tokens, rounded up to a part of the new limit
		drained := func(tokens *big.Rat, law scale) int64 {
			left := new(big.Rat).Sub(tokens, new(big.Rat).Mul(elapsed, new(big.Rat).SetFrac64(law.refill, law.token)))
			if left.Sign() < 0 {
				return 0
			}
			left.Mul(left, new(big.Rat).SetInt64(to.token))
			whole, rest := new(big.Int).QuoRem(left.Num(), left.Denom(), new(big.Int))
			if rest.Sign() > 0 {
				whole.Add(whole, big.NewInt(1))
			}
			if !whole.IsInt64() {
				return math.MaxInt64
			}
			return whole.Int64()
		}
		used := new(big.Rat).SetFrac64(b.debt, b.scale.token)
		asOld := drained(used, b.scale)
		if burst := new(big.Rat).SetInt64(to.burst); used.Cmp(burst) > 0 {
			used = burst
		}
		want := min(asOld, drained(used, to))

		got := b.settle(now, to)
		if got.debt != want {
			t.Fatalf("debt %d, want %d", got.debt, want)
		}
		if got.atUS != max(now, b.atUS) || got.scale != to {
			t.Fatalf("%+v", got)
		}
	})
}

// What a decision says of the future is what settling tells then: RetryAfter is the
// first microsecond at which a unit can be granted, ResetAfter at which all can.
func TestDecisionTellsTheFuture(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := anyBucket(t)
		unit := rapid.Int64Range(1, b.scale.burst).Draw(t, "unit")
		request := pglimit.Request{Tokens: unit, Unit: unit}
		d := b.decision(request, 0)
		if d.Remaining*b.scale.token > b.scale.capacity()-b.debt || (d.Remaining+1)*b.scale.token <= b.scale.capacity()-b.debt {
			t.Fatalf("%d remain of %d with a debt of %d parts", d.Remaining, b.scale.burst, b.debt)
		}
		const forever = 290 * 365 * 24 * time.Hour
		granted := func(after time.Duration) bool {
			return b.settle(b.atUS+after.Microseconds(), b.scale).grantable(request) == unit
		}
		if d.RetryAfter < forever && (!granted(d.RetryAfter) || d.RetryAfter > 0 && granted(d.RetryAfter-time.Microsecond)) {
			t.Fatalf("RetryAfter %v", d.RetryAfter)
		}
		full := func(after time.Duration) bool { return b.settle(b.atUS+after.Microseconds(), b.scale).debt == 0 }
		if d.ResetAfter < forever && (!full(d.ResetAfter) || d.ResetAfter > 0 && full(d.ResetAfter-time.Microsecond)) {
			t.Fatalf("ResetAfter %v", d.ResetAfter)
		}
	})
}

func TestLockOrderIsOneForAllCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOf(rapid.Custom(func(t *rapid.T) pglimit.Request {
			return pglimit.Request{Key: rapid.StringN(0, 3, 6).Draw(t, "key"), Limiter: rapid.StringN(0, 2, 4).Draw(t, "limiter")}
		})).Draw(t, "requests")
		order := lockOrder(requests)
		seen := make(map[int]bool)
		for place, i := range order {
			seen[i] = true
			if place == 0 {
				continue
			}
			before, after := requests[order[place-1]], requests[i]
			same := before.Key == after.Key && before.Limiter == after.Limiter
			if before.Key > after.Key || before.Key == after.Key && before.Limiter > after.Limiter || same && order[place-1] > i {
				t.Fatalf("%v before %v", before, after)
			}
		}
		if len(seen) != len(requests) {
			t.Fatalf("%d of %d requests", len(seen), len(requests))
		}
	})
}

func TestByNameFindsEachAndListsThemOtherwise(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		if found, err := ByName(s.Name()); err != nil || found != s {
			t.Errorf("ByName(%q) is %v, %v", s.Name(), found, err)
		}
	}
	_, err := ByName("leaky")
	want := `strategies: there is no strategy "leaky", only token_bucket, upsert, for_update_nowait, exclusion_range`
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
}
