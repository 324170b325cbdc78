package local_test

import (
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/internal/local"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxKeys is how many are remembered.
const maxKeys = 65_536

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// ask for so many tokens, all or nothing; for zero it is a peek.
func ask(key string, limit rate.Limit, tokens int64) *rate.Request {
	return &rate.Request{Limiter: "api", Key: key, Limit: limit, Tokens: tokens, Unit: max(tokens, 1)}
}

func TestAnInstanceHasItsShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit     rate.Limit
		instances int
		burst     int64
		token     time.Duration
	}{
		{rate.PerSecond(10).WithBurst(20), 1, 20, 100 * time.Millisecond},
		{rate.PerSecond(10).WithBurst(20), 4, 5, 400 * time.Millisecond},
		{rate.PerSecond(10).WithBurst(20), 3, 6, 300 * time.Millisecond}, // not 7, of which three are 21
		{rate.PerSecond(10).WithBurst(20), 20, 1, 2 * time.Second},
		{rate.PerSecond(10).WithBurst(20), 1000, 1, 100 * time.Second}, // a burst of one at least
		{rate.Every(time.Hour), 3, 1, 3 * time.Hour},
	} {
		b := local.New().Of(test.instances)
		for n := test.burst; n > 0; n-- {
			d := b.Take(ask("k", test.limit, 1), noon)
			if !d.Allowed || d.Granted != 1 || d.Remaining != n-1 {
				t.Errorf("%v / %d: %d of %d: %+v", test.limit, test.instances, n, test.burst, d)
			}
			if full := time.Duration(test.burst-n+1) * test.token; !near(d.ResetAfter, full) {
				t.Errorf("%v / %d: full after %v, want %v", test.limit, test.instances, d.ResetAfter, full)
			}
			if n > 1 && d.RetryAfter != 0 || n == 1 && !near(d.RetryAfter, test.token) {
				t.Errorf("%v / %d: with %d left: %+v", test.limit, test.instances, n-1, d)
			}
		}
		for i := range 5 {
			now := noon.Add(time.Duration(i) * test.token)
			if d := b.Take(ask("k", test.limit, 1), now.Add(-2*time.Microsecond)); d.Allowed || d.Granted != 0 {
				t.Errorf("%v / %d: token %d is early: %+v", test.limit, test.instances, i, d)
			}
			if i == 0 {
				continue
			}
			if d := b.Take(ask("k", test.limit, 1), now.Add(2*time.Microsecond)); !d.Allowed {
				t.Errorf("%v / %d: token %d is late: %+v", test.limit, test.instances, i, d)
			}
		}
	}
}

// near says whether a time is right to within rounding, which is up.
func near(got, want time.Duration) bool { return got >= want && got <= want+2*time.Microsecond }

func TestUnitsAndPeeks(t *testing.T) {
	t.Parallel()
	limit := rate.PerSecond(10).WithBurst(14) // of two: 7 at once, one in 200 ms
	for _, test := range []struct {
		name         string
		tokens, unit int64
		used         int64
		allowed      bool
		granted      int64
		remaining    int64
		retry        time.Duration
	}{
		{"all of it", 7, 7, 0, true, 7, 0, 1400 * time.Millisecond},
		{"all or nothing", 7, 7, 1, false, 0, 6, 200 * time.Millisecond},
		{"more than the share", 8, 8, 0, false, 0, 7, 200 * time.Millisecond},
		{"whole units", 10, 2, 0, true, 6, 1, 200 * time.Millisecond},
		{"whole units of what is left", 6, 2, 2, true, 4, 1, 200 * time.Millisecond},
		{"as many as wanted", 4, 2, 0, true, 4, 3, 0},
		{"less than a unit", 6, 3, 5, false, 0, 2, 200 * time.Millisecond},
		{"a peek", 0, 1, 3, true, 0, 4, 0},
		{"a peek at nothing", 0, 1, 7, false, 0, 0, 200 * time.Millisecond},
		{"a peek for three", 0, 3, 4, true, 0, 3, 0},
		{"a peek for four", 0, 4, 4, false, 0, 3, 200 * time.Millisecond},
		{"a peek for no unit", 0, 0, 0, true, 0, 7, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := local.New().Of(2)
			if test.used > 0 && !b.Take(ask("k", limit, test.used), noon).Allowed {
				t.Fatal("there is less than was used")
			}
			r := &rate.Request{Limiter: "api", Key: "k", Limit: limit, Tokens: test.tokens, Unit: test.unit}
			d := b.Take(r, noon)
			if d.Allowed != test.allowed || d.Granted != test.granted || d.Remaining != test.remaining {
				t.Errorf("%+v", d)
			}
			if !near(d.RetryAfter, test.retry) || test.retry == 0 && d.RetryAfter != 0 {
				t.Errorf("come back after %v, want %v", d.RetryAfter, test.retry)
			}
			if full := time.Duration(7-test.remaining) * 200 * time.Millisecond; !near(d.ResetAfter, full) {
				t.Errorf("full after %v, want %v", d.ResetAfter, full)
			}
			if again := b.Take(ask("k", limit, 0), noon); again.Remaining != test.remaining {
				t.Errorf("%d are left, and it said %d", again.Remaining, test.remaining)
			}
		})
	}
}

// limits that are valid, small and large.
func limits(t *rapid.T) rate.Limit {
	token := rapid.SampledFrom([]time.Duration{
		1, 7, 333, time.Microsecond, 333_333_334, 20_408_164, time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond, time.Second, time.Hour, rate.MaxWindow,
	}).Draw(t, "token")
	burst := rapid.Int64Range(1, min(int64(rate.MaxWindow/token), rapid.SampledFrom([]int64{1, 10, 1000, math.MaxInt64}).Draw(t, "largest"))).Draw(t, "burst")
	limit := rate.Every(token).WithBurst(burst)
	if err := limit.Validate(); err != nil {
		t.Fatal(err)
	}
	return limit
}

// Nothing is granted ahead: nobody knows who else waits.
func TestNothingIsGrantedAhead(t *testing.T) {
	t.Parallel()
	b, limit := local.New().Of(1), rate.PerSecond(1)
	r := ask("k", limit, 1)
	r.Ahead = time.Hour
	first, second := b.Take(r, noon), b.Take(r, noon)
	if !first.Allowed || first.Delay != 0 || second.Allowed || second.Delay != 0 || second.RetryAfter != time.Second {
		t.Errorf("%+v, then %+v", first, second)
	}
}

// Over any history, and between any two moments of it, no more is granted than the share: a
// burst, and what comes back in that time. The rule is counted in time and in integers, as
// Postgres does it: the debt of an empty bucket is the time in which it fills.
func TestNeverMoreThanTheShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit, instances := limits(t), rapid.SampledFrom([]int{1, 2, 3, 7, 100}).Draw(t, "instances")
		burst := max(1, limit.Burst/int64(instances))
		perSecond := 1e9 / float64(limit.Token()) / float64(instances)
		// What a float64 of so many tokens cannot tell apart, each time it is counted.
		slack := (float64(burst) + 1) * 0x1p-50
		b, now := local.New().Of(instances), noon
		type grant struct {
			at     time.Time
			tokens float64
		}
		var grants []grant
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			share := rapid.SampledFrom([]float64{0, 0.01, 0.5, 1, 3}).Draw(t, "share of a token, or of the burst")
			scale := rapid.SampledFrom([]float64{1, float64(burst)}).Draw(t, "tokens")
			wait := time.Duration(min(share*scale/perSecond*1e9, float64(rate.MaxWindow)/100))
			now = now.Add(wait + time.Duration(rapid.Int64Range(0, 3).Draw(t, "ns")))
			tokens := rapid.Int64Range(0, limit.Burst).Draw(t, "wanted")
			if rapid.Bool().Draw(t, "few") {
				tokens = min(tokens, 2)
			}
			unit := rapid.Int64Range(1, max(tokens, 1)).Draw(t, "unit")
			d := b.Take(&rate.Request{Limiter: "api", Key: "k", Limit: limit, Tokens: tokens, Unit: unit}, now)
			switch {
			case d.Granted < 0, d.Granted > tokens, d.Granted%unit != 0, tokens > 0 && d.Allowed != (d.Granted > 0),
				d.Remaining < 0, d.Remaining > burst, d.RetryAfter < 0, d.ResetAfter < 0, d.RetryAfter > 0 != (d.Remaining < unit):
				t.Fatalf("%d in units of %d: %+v", tokens, unit, d)
			}
			grants = append(grants, grant{now, float64(d.Granted)})
			for from := range grants {
				total := 0.0
				for _, g := range grants[from:] {
					total += g.tokens
				}
				span := now.Sub(grants[from].at).Seconds()
				if most := float64(burst) + perSecond*span; total > most*(1+1e-12)+slack*float64(len(grants)) {
					t.Fatalf("%v / %d: %.20g in %v, at most %.20g", limit, instances, total, now.Sub(grants[from].at), most)
				}
			}
		}
	})
}

// Who comes back when it was told to is granted, and not much before.
func TestRetryAfterIsTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit, instances := limits(t), rapid.SampledFrom([]int{1, 2, 3, 7, 100}).Draw(t, "instances")
		burst := max(1, limit.Burst/int64(instances))
		if burst > 1<<40 {
			return // one token more or less is nothing to a float64
		}
		b, now := local.New().Of(instances), noon
		b.Take(ask("k", limit, burst), now)
		for range rapid.IntRange(1, 10).Draw(t, "requests") {
			tokens := rapid.Int64Range(1, burst).Draw(t, "tokens")
			d := b.Take(ask("k", limit, tokens), now)
			if d.Granted > 0 {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(min(limit.Token(), time.Hour))).Draw(t, "wait")))
				continue
			}
			if early := d.RetryAfter - d.RetryAfter>>30 - 2*time.Microsecond; early > 0 {
				if e := b.Take(ask("k", limit, tokens), now.Add(early)); e.Allowed {
					t.Fatalf("%v / %d: %d tokens after %v already, not %v", limit, instances, tokens, early, d.RetryAfter)
				}
			}
			if d.RetryAfter > rate.MaxWindow/2 {
				return
			}
			now = now.Add(d.RetryAfter + d.RetryAfter>>45 + time.Microsecond) // the error of a float64
			if e := b.Take(ask("k", limit, tokens), now); !e.Allowed || e.Granted != tokens {
				t.Fatalf("%v / %d: %d tokens, told to come back after %v: %+v", limit, instances, tokens, d.RetryAfter, e)
			}
		}
	})
}

// Two releases of a program may have different limits: what was used stays used, and going
// back and forth between them gains nothing.
func TestAnotherLimitOfTheSameKey(t *testing.T) {
	t.Parallel()
	b := local.New().Of(2)
	wide, narrow := rate.PerSecond(20).WithBurst(40), rate.PerSecond(2).WithBurst(10)
	if d := b.Take(ask("k", wide, 3), noon); d.Remaining != 17 {
		t.Errorf("%+v", d)
	}
	if d := b.Take(ask("k", narrow, 1), noon); !d.Allowed || d.Remaining != 1 || d.RetryAfter != 0 {
		t.Errorf("3 of 5 were used: %+v", d)
	}
	if d := b.Take(ask("k", wide, 10), noon); !d.Allowed || d.Remaining != 6 {
		t.Errorf("4 of 20 were used: %+v", d)
	}
	if d := b.Take(ask("k", narrow, 1), noon); d.Allowed || d.Remaining != 0 || !near(d.RetryAfter, time.Second) {
		t.Errorf("more was used than there is: %+v", d)
	}
	one, other := rate.Every(time.Second), rate.Every(2*time.Second)
	granted := int64(0)
	for i := range 1000 {
		limit := one
		if i%2 == 1 {
			limit = other
		}
		granted += b.Take(ask("back and forth", limit, 1), noon.Add(time.Duration(i)*time.Microsecond)).Granted
	}
	if granted != 1 {
		t.Errorf("%d tokens in a millisecond, of a burst of 1", granted)
	}
}

// Requests under two limits in turn get together what the looser burst and the looser rate allow,
// and nobody is locked out.
func TestTwoLimitsInTurn(t *testing.T) {
	t.Parallel()
	for _, limits := range [][2]rate.Limit{
		{rate.PerSecond(10).WithBurst(10), rate.PerSecond(20).WithBurst(200)},
		{rate.PerSecond(100).WithBurst(3), rate.PerSecond(5).WithBurst(50)},
	} {
		const span = 4 * time.Second
		b := local.New().Of(1)
		granted, late := int64(0), int64(0)
		for i := range int(span / time.Millisecond) {
			now := time.Duration(i) * time.Millisecond
			n := b.Take(ask("k", limits[i%2], 1), noon.Add(now)).Granted
			granted += n
			if now > span/2 {
				late += n
			}
		}
		fastest, largest := max(limits[0].Tokens, limits[1].Tokens), max(limits[0].Burst, limits[1].Burst)
		if most := largest + fastest*int64(span/time.Second); granted > most {
			t.Errorf("%v: %d tokens, at most %d", limits, granted, most)
		}
		if slowest := min(limits[0].Tokens, limits[1].Tokens); late < slowest*int64(span/time.Second)/2-1 {
			t.Errorf("%v: only %d tokens in the later half", limits, late)
		}
	}
}

// A rate of one per nanosecond, and one token in 200 years.
func TestHugeLimits(t *testing.T) {
	t.Parallel()
	fast := rate.PerSecond(rate.MaxRate).WithBurst(int64(rate.MaxWindow))
	b := local.New().Of(1)
	if d := b.Take(ask("k", fast, fast.Burst), noon); !d.Allowed || d.Granted != fast.Burst || d.Remaining != 0 || !near(d.ResetAfter, rate.MaxWindow) {
		t.Errorf("%+v", d)
	}
	if d := b.Take(ask("k", fast, fast.Burst), noon); d.Allowed || d.Remaining != 0 || d.RetryAfter != rate.MaxWindow {
		t.Errorf("%+v", d)
	}
	if d := b.Take(ask("k", fast, 900_000), noon.Add(time.Millisecond)); !d.Allowed || d.Granted != 900_000 {
		t.Errorf("a millisecond later: %+v", d)
	}
	slow := rate.Every(rate.MaxWindow)
	for _, instances := range []int{1, 1000, math.MaxInt32} {
		b := local.New().Of(instances)
		first, second := b.Take(ask("k", slow, 1), noon), b.Take(ask("k", slow, 1), noon.Add(rate.MaxWindow/2))
		if !first.Allowed || first.RetryAfter != rate.MaxWindow || first.ResetAfter != rate.MaxWindow {
			t.Errorf("%d: %+v", instances, first)
		}
		if second.Allowed || second.RetryAfter <= 0 || second.ResetAfter <= 0 {
			t.Errorf("%d: %+v", instances, second)
		}
	}
}

func TestManyAtOnceGetNoMore(t *testing.T) {
	t.Parallel()
	b, limit := local.New().Of(2), rate.Every(time.Hour).WithBurst(1000)
	var mu sync.Mutex
	granted := map[string]int64{}
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for i := range 400 {
				key := strconv.Itoa(i % 3)
				d := b.Take(ask(key, limit, 1), noon)
				mu.Lock()
				granted[key] += d.Granted
				mu.Unlock()
			}
		})
	}
	work.Wait()
	for key, n := range granted {
		if n != 500 {
			t.Errorf("%s: %d tokens", key, n)
		}
	}
}

// Callers read the clock before it is their turn, so it may show less than it has: what was
// refilled once is not refilled again.
func TestAClockThatGoesBackward(t *testing.T) {
	t.Parallel()
	b, limit := local.New().Of(1), rate.PerSecond(1000).WithBurst(10)
	random := rand.New(rand.NewPCG(1, 2))
	b.Take(ask("k", limit, 0), noon)
	latest, granted := noon, int64(0)
	for range 20_000 {
		now := latest.Add(time.Duration(random.Int64N(6000)-5000) * time.Microsecond)
		if now.After(latest) {
			latest = now
		}
		granted += b.Take(ask("k", limit, 1), now).Granted
		if most := 10 + latest.Sub(noon).Milliseconds(); granted > most {
			t.Fatalf("%d tokens in %v", granted, latest.Sub(noon))
		}
	}
	if least := latest.Sub(noon).Milliseconds(); granted < least {
		t.Errorf("only %d tokens in %v", granted, latest.Sub(noon))
	}
}
