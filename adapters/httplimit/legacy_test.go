package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func TestLegacyFieldsTellTheTightestLimit(t *testing.T) {
	t.Parallel()
	for _, serviceFirst := range []bool{true, false} {
		memory := pglimittest.Memory() // at 946684800
		service := httplimit.New(newLimiter(t, memory, pglimit.Config{Name: "service", Limit: pglimit.PerMinute(4)}),
			httplimit.Config{Key: httplimit.Constant("all"), Headers: httplimit.Legacy})
		user := httplimit.New(newLimiter(t, memory, pglimit.Config{Name: "user", Limit: pglimit.PerMinute(6).WithBurst(2)}),
			httplimit.Config{Key: httplimit.Header("X-User"), Headers: httplimit.Legacy})
		handler := user(service(fine))
		if serviceFirst {
			handler = service(user(fine))
		}
		url := served(t, handler)
		get(t, url, "X-User", "1").expect(t, 200, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684810", "RateLimit", "", "RateLimit-Policy", "")
		get(t, url, "X-User", "2").expect(t, 200, "X-RateLimit-Limit", "2", "X-RateLimit-Remaining", "1")
		get(t, url, "X-User", "3").expect(t, 200, "X-RateLimit-Remaining", "1")
		get(t, url, "X-User", "4").expect(t, 200, "X-RateLimit-Limit", "4", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684860")
		get(t, url, "X-User", "5").expect(t, 429, "X-RateLimit-Limit", "4", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684860", "Retry-After", "15")
	}
}

// Of several limits too: which denied, not which has fewer tokens left.
func TestLegacyFieldsOfSeveralLimits(t *testing.T) {
	t.Parallel()
	config := everybody
	config.Headers = httplimit.Legacy
	config.Requests = func(_ *http.Request, key string) []pglimit.Request {
		return []pglimit.Request{{Key: key}, {Limiter: "bytes", Key: key, Limit: pglimit.PerHour(1000), Tokens: 400}, {Limiter: "day", Key: key, Limit: pglimit.PerHour(50)}}
	}
	url := served(t, httplimit.New(limited(t, pglimit.PerMinute(3)), config)(fine))
	get(t, url).expect(t, 200, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "2")
	get(t, url).expect(t, 200, "X-RateLimit-Limit", "3", "X-RateLimit-Remaining", "1")
	get(t, url).expect(t, 429, "X-RateLimit-Limit", "1000", "X-RateLimit-Remaining", "200", "Retry-After", "720")
}

// Of a blocked key the reset is the end of the block, or when the bucket is full, if that is later.
func TestLegacyFieldsOfABlockedKey(t *testing.T) {
	t.Parallel()
	for limit, reset := range map[pglimit.Limit]string{pglimit.PerSecond(1): "946684860", pglimit.PerMinute(60).WithBurst(600): "946685400"} {
		memory := pglimittest.Memory() // at 946684800
		block := pglimit.Block{After: 1, Within: time.Minute, For: time.Minute, Max: time.Hour, Forget: 24 * time.Hour}
		config := everybody
		config.Headers = httplimit.Legacy
		config.Cost = func(*http.Request) int64 { return limit.Burst }
		url := served(t, httplimit.New(newLimiter(t, memory, pglimit.Config{Limit: limit, Block: block}), config)(fine))
		get(t, url).expect(t, 200)
		get(t, url).expect(t, 429) // blocks
		memory.Advance(time.Second)
		get(t, url).expect(t, 429, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset)
	}
}

// Retry-After, and the time at which a bucket is full, are rounded up.
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
