package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// Whole seconds are told as they are, and a nanosecond more is a second more. Numbers end at 15 digits.
func TestFieldsAreRoundedUp(t *testing.T) {
	t.Parallel()
	const most = 999_999_999_999_999
	fast := pglimit.Limit{Tokens: 1_000_000_000, Period: time.Second}
	for _, c := range []struct {
		limit        pglimit.Limit
		policy, rate string
	}{
		{pglimit.Every(1), `"api";q=1;w=1`, `"api";r=0;t=1`},
		{pglimit.Every(time.Second - 1), `"api";q=1;w=1`, `"api";r=0;t=1`},
		{pglimit.Every(time.Second), `"api";q=1;w=1`, `"api";r=0;t=1`},
		{pglimit.Every(time.Second + 1), `"api";q=1;w=2`, `"api";r=0;t=2`},
		{pglimit.Every(time.Second).WithBurst(3), `"api";q=3;w=3`, `"api";r=2;t=2`},
		{pglimit.Every(time.Second + 1).WithBurst(3), `"api";q=3;w=4`, `"api";r=2;t=3`},
		{fast.WithBurst(most), `"api";q=999999999999999;w=1000000`, `"api";r=999999999999998;t=1000000`},
		{fast.WithBurst(most + 1), `"api";q=999999999999999;w=1000000`, `"api";r=999999999999999;t=1000000`},
		{fast.WithBurst(most + 2), `"api";q=999999999999999;w=1000001`, `"api";r=999999999999999;t=1000000`},
	} {
		url := served(t, httplimit.New(limited(t, c.limit), everybody)(fine))
		get(t, url).expect(t, 200, "RateLimit-Policy", c.policy, "RateLimit", c.rate)
	}
}

// The same of denials, and of the time at which a bucket is full.
func TestTimesOfADenialAreRoundedUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, later time.Duration // the take, and after it
		retry, reset  string
	}{
		{0, 0, "3", "946684803"},
		{time.Microsecond, 0, "3", "946684804"},
		{0, time.Second - 1, "3", "946684803"},
		{0, time.Second, "2", "946684803"},
		{0, time.Second + 1, "2", "946684803"},
		{0, 3*time.Second - 1, "1", "946684803"},
	} {
		memory := pglimittest.Memory() // at 946684800
		config := everybody
		config.Headers = httplimit.Legacy
		memory.Advance(c.before)
		url := served(t, httplimit.New(newLimiter(t, memory, pglimit.Config{Limit: pglimit.Every(3 * time.Second)}), config)(fine))
		get(t, url).expect(t, 200, "X-RateLimit-Reset", c.reset)
		memory.Advance(c.later)
		get(t, url).expect(t, 429, "Retry-After", c.retry, "X-RateLimit-Reset", c.reset)
	}
}

// Of limits with as many tokens left the outermost is told, and of one Requests the first.
func TestLegacyFieldsOfEqualLimits(t *testing.T) {
	t.Parallel()
	config := everybody
	config.Headers = httplimit.Legacy
	inner := config
	inner.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Key: key}, {Limiter: "other", Key: key, Limit: pglimit.PerHour(4).WithBurst(3)}}
	}
	second := httplimit.New(limited(t, pglimit.PerHour(2).WithBurst(3)), inner)(fine)
	get(t, served(t, httplimit.New(limited(t, pglimit.PerHour(1).WithBurst(3)), config)(second))).expect(t, 200, "X-RateLimit-Remaining", "2", "X-RateLimit-Reset", "946688400")
	get(t, served(t, httplimit.New(limited(t, pglimit.PerHour(1).WithBurst(4)), config)(second))).expect(t, 200, "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946688400")
}
