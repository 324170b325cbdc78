package pglimit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A server comes and goes ten times a second. However often it does, Postgres grants at most the limit, and
// all instances of FailLocal together at most once more: they remember what they granted in the outages
// before. That is the figure in the docs, and hardly less: both grant all that they may.
func TestFailLocalOnAFlappingServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const instances, length = 4, 20 * time.Second
		memory := pglimittest.MemoryOn(time.Now)
		limit := pglimit.PerSecond(20).WithBurst(40)
		var limiters []*pglimit.Limiter
		for range instances {
			limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: limit, OnError: pglimit.FailLocal(instances)})
			if err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, limiter)
		}
		granted := make(map[pglimit.Source]int64)
		for n := range int64(length / (5 * time.Millisecond)) {
			if memory.Fail(nil); n%20 < 10 {
				memory.Fail(pglimit.ErrUnavailable)
			}
			for _, limiter := range limiters {
				d, err := limiter.Allow(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				granted[d.Source] += d.Granted
			}
			time.Sleep(5 * time.Millisecond)
		}
		most := limit.Burst + int64(length.Seconds())*limit.Tokens
		for _, source := range []pglimit.Source{pglimit.FromDatabase, pglimit.FromFallback} {
			if n := granted[source]; n > most || n < most*9/10 {
				t.Errorf("%v granted %d, want %d", source, n, most)
			}
		}
	})
}
