package pglimit_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// distant is a bucket behind a network of some latency, there and back: the time at which it
// is full again, by a clock that is the test's.
type distant struct {
	limit       pglimit.Limit
	there, back time.Duration
	full        time.Time
}

// owed is how long it takes from the time until the bucket is full.
func (d *distant) owed(at time.Time) time.Duration { return max(0, d.full.Sub(at)) }

func (d *distant) token() time.Duration { return d.limit.Period / time.Duration(d.limit.Tokens) }

func (d *distant) tokens(at time.Time) int64 {
	return int64((d.token()*time.Duration(d.limit.Burst) - d.owed(at)) / d.token())
}

func (d *distant) take(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
	time.Sleep(d.there)
	defer time.Sleep(d.back)
	decisions := make([]pglimit.Decision, len(requests))
	now := time.Now()
	for i, r := range requests {
		granted := min(r.Tokens, d.tokens(now)) / r.Unit * r.Unit
		d.full = now.Add(d.owed(now) + time.Duration(granted)*d.token())
		left := d.tokens(now)
		missing := d.owed(now) - d.token()*time.Duration(d.limit.Burst-r.Unit)
		decisions[i] = pglimit.Decision{Allowed: granted > 0, Granted: granted, Remaining: left, RetryAfter: max(0, missing), ResetAfter: d.owed(now), At: now}
	}
	return decisions, nil
}

// Who sleeps for exactly as long as the memory says, and asks again, gets what it asked for;
// and what is said to be in the bucket is there.
func TestTheMemoryOfADenialTellsTheTruth(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			limit := pglimit.Limit{Tokens: 1, Period: time.Duration(1 + random.Int64N(int64(100*time.Millisecond))), Burst: 1 + random.Int64N(20)}
			bucket := &distant{limit: limit, there: time.Duration(random.Int64N(3e7)), back: time.Duration(random.Int64N(3e7))}
			strategy := &fake{take: bucket.take}
			limiter := remembering(t, strategy, func(c *pglimit.Config) { c.Limit = limit })
			remembered := 0
			for range 50 {
				n := 1 + random.Int64N(limit.Burst)
				for range 100 { // until the memory knows that there are fewer than n
					d, err := limiter.AllowN(t.Context(), "a", n)
					if err != nil {
						t.Fatal(err)
					}
					if d.RetryAfter > 0 {
						break
					}
				}
				n += random.Int64N(limit.Burst - n + 1)
				time.Sleep(time.Duration(random.Int64N(int64(limit.Period))))
				before := len(strategy.taken)
				d, err := limiter.AllowN(t.Context(), "a", n)
				if err != nil {
					t.Fatal(err)
				}
				if len(strategy.taken) > before {
					continue
				}
				remembered++
				now := time.Now()
				if there := bucket.tokens(now); d.Remaining > there || d.Remaining < 0 {
					t.Fatalf("%v: %d tokens remain, %d are there", limit, d.Remaining, there)
				}
				if owed := bucket.owed(now); d.ResetAfter < owed || d.ResetAfter > owed+bucket.back+owed/1000+limit.Period {
					t.Fatalf("%v: full after %v, told %v", limit, owed, d.ResetAfter)
				}
				if d.At.After(now) || d.At.Before(now.Add(-bucket.back-time.Second/1000)) {
					t.Fatalf("%v: at %v, told %v", limit, now, d.At)
				}
				time.Sleep(d.RetryAfter)
				if there := bucket.tokens(time.Now()); there < n {
					t.Fatalf("%v: after RetryAfter (%v) %d tokens are there, not %d", limit, d.RetryAfter, there, n)
				}
				before = len(strategy.taken)
				if d, err = limiter.AllowN(t.Context(), "a", n); err != nil || !d.Allowed || len(strategy.taken) == before {
					t.Fatalf("%v: slept as long as told, and heard %+v, %v", limit, d, err)
				}
			}
			if limit.Period > 50*time.Millisecond && remembered == 0 {
				t.Errorf("%v: nothing was answered from memory", limit)
			}
		})
	}
}

// Of 20 tokens 18 are set aside for a second, and one is used. Two are there when that has
// flowed back, after 100 ms. When more are there, only Postgres knows.
func TestTheMemoryDoesNotPromiseWhatIsSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lasts = time.Second
		limiter := remembering(t, &fake{take: func(_ context.Context, requests []pglimit.Request) ([]pglimit.Decision, error) {
			retry := map[int64]time.Duration{2: 100 * time.Millisecond, 5: lasts + 300*time.Millisecond}[requests[0].Unit]
			return []pglimit.Decision{{Remaining: 1, RetryAfter: retry, ResetAfter: lasts + 1800*time.Millisecond}}, nil
		}}, nil)
		for _, test := range []struct {
			tokens int64
			source pglimit.Source
			want   time.Duration
		}{
			{2, pglimit.FromDatabase, 100 * time.Millisecond}, {2, pglimit.FromMemory, 100 * time.Millisecond},
			{5, pglimit.FromDatabase, lasts + 300*time.Millisecond}, {5, pglimit.FromMemory, lasts + 300*time.Millisecond},
		} {
			d, err := limiter.AllowN(t.Context(), "a", test.tokens)
			if err != nil || d.Source != test.source || d.RetryAfter != test.want || d.Remaining != 1 {
				t.Errorf("%d: %+v, %v", test.tokens, d, err)
			}
		}
	})
}

// What the process has taken since a denial counts in what the memory says of it.
func TestTheMemoryCountsWhatWasTakenSince(t *testing.T) {
	t.Parallel()
	for _, combine := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			limiter := remembering(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
				c.Limit, c.Combine.Off = pglimit.PerSecond(10).WithBurst(1000), !combine
			})
			ask := func(n int64, allowed bool, source pglimit.Source) pglimit.Decision {
				t.Helper()
				d, err := limiter.AllowN(t.Context(), "a", n)
				if err != nil || d.Allowed != allowed || d.Source != source {
					t.Fatalf("%d: %+v, %v", n, d, err)
				}
				return d
			}
			ask(504, true, pglimit.FromDatabase)
			for range 40 {
				ask(10, true, pglimit.FromDatabase)
			}
			d := ask(504, false, pglimit.FromMemory)
			if d.RetryAfter != 40_800*time.Millisecond || d.ResetAfter != 90_400*time.Millisecond || d.Remaining != 96 {
				t.Errorf("%+v", d)
			}
			time.Sleep(d.RetryAfter)
			ask(504, true, pglimit.FromDatabase)
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
