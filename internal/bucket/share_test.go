package bucket

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A share is valid, and never more than the share of the rate and of the burst, but for a burst of one; nor is it less
// by more than rounding.
func TestAShareOfALimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := anyLimit(t, "limit")
		of := rapid.Int64Range(1, 1000).Draw(t, "of")
		parts := rapid.Int64Range(1, of).Draw(t, "parts")
		share := Share(limit, parts, of)
		if err := share.Validate(); err != nil {
			t.Fatal(err)
		}
		if parts == of && (share.Token() != limit.Token() || share.Burst != limit.Burst) {
			t.Fatalf("all of %v is %v", limit, share)
		}
		whole, exact := product(int64(limit.Token()), of), product(int64(share.Token()), parts)
		if share.Token() < rate.MaxWindow && (exact.Cmp(whole) < 0 || exact.Sub(exact, big.NewInt(parts)).Cmp(whole) >= 0) {
			t.Fatalf("%d/%d of %v: a token takes %v", parts, of, limit, share.Token())
		}
		burst := new(big.Int).Div(product(limit.Burst, parts), big.NewInt(of)).Int64()
		if share.Burst > max(1, burst) || share.Burst < burst && share.Window()+share.Token() <= rate.MaxWindow {
			t.Fatalf("%d/%d of %v: the burst is %d", parts, of, limit, share.Burst)
		}
	})
}

func TestAShareReadsLikeItsLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit     rate.Limit
		parts, of int64
		want      string
	}{
		{rate.PerSecond(100), 50, 100, "100/2s burst 50"},
		{rate.PerSecond(10).WithBurst(20), 1, 3, "10/3s burst 6"},
		{rate.Every(time.Hour), 10, 100, "1/10h"},
		{rate.PerDay(50).Fixed(), 29, 100, "50/day fixed burst 14"},
		{rate.PerDay(50).Fixed(), 1, 100, "50/day fixed burst 1"},
	} {
		if got := Share(test.limit, test.parts, test.of).String(); got != test.want {
			t.Errorf("%d/%d of %v is %s, want %s", test.parts, test.of, test.limit, got, test.want)
		}
	}
}
