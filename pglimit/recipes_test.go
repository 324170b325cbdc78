package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// The recipes of docs/recipes.md: what each grants, and when, to the millisecond.

const refused = -ms

// repeated is n times the same.
func repeated(n int, d time.Duration) []time.Duration { return slices.Repeat([]time.Duration{d}, n) }

// recipe has a limiter whose clock the test moves.
func recipe(t *testing.T, limit pglimit.Limit) (*pglimittest.Strategy, *pglimit.Limiter) {
	t.Helper()
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(memory, pglimit.Config{Name: "recipe", Limit: limit, Timeout: pglimit.NoTimeout})
	if err != nil {
		t.Fatal(err)
	}
	return memory, limiter
}

// delays of requests for one token each, who wait for it for so long at most.
func delays(t *testing.T, limiter *pglimit.Limiter, n int, longest time.Duration) (delays []time.Duration) {
	t.Helper()
	for range n {
		d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, Ahead: longest})
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			d.Delay = refused
		}
		delays = append(delays, d.Delay)
	}
	return delays
}

// nginx is `limit_req_zone … rate=rate` and `limit_req … burst=burst delay=delay` (nodelay: delay equals burst) as a
// limit, and how long a request may wait.
func nginx(rate pglimit.Limit, burst, delay int64) (limit pglimit.Limit, maxWait time.Duration) {
	return rate.WithBurst(delay + 1), time.Duration(burst-delay) * rate.Token()
}

func TestRecipeNginx(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate         pglimit.Limit
		burst, delay int64
		want         []time.Duration // of requests that come at once
	}{
		{pglimit.PerSecond(10), 5, 0, []time.Duration{0, 100 * ms, 200 * ms, 300 * ms, 400 * ms, 500 * ms, refused, refused}},
		{pglimit.PerSecond(10), 5, 5, append(repeated(6, 0), refused, refused)}, // nodelay
		{pglimit.PerSecond(5), 12, 8, append(repeated(9, 0), 200*ms, 400*ms, 600*ms, 800*ms, refused, refused)},
	} {
		limit, maxWait := nginx(c.rate, c.burst, c.delay)
		_, limiter := recipe(t, limit)
		if got := delays(t, limiter, len(c.want), maxWait); !slices.Equal(got, c.want) {
			t.Errorf("%v burst=%d delay=%d: %v, want %v", c.rate, c.burst, c.delay, got, c.want)
		}
	}
	limit, maxWait := nginx(pglimit.PerMinute(30), 0, 0)
	memory, limiter := recipe(t, limit)
	for _, c := range []struct {
		after time.Duration
		want  time.Duration
	}{{0, 0}, {1999 * ms, refused}, {1 * ms, 0}} {
		memory.Advance(c.after)
		if got := delays(t, limiter, 1, maxWait); got[0] != c.want {
			t.Errorf("%v later: %v, want %v", c.after, got[0], c.want)
		}
	}
}

// limitReq is the arithmetic of nginx 1.22, in src/http/modules/ngx_http_limit_req_module.c: all in thousandths of a
// request, and the clock in milliseconds.
type limitReq struct {
	rate, burst, delay int64
	excess, last       int64
	known              bool
}

// ask returns the delay in milliseconds, or -1.
func (l *limitReq) ask(now int64) int64 {
	excess := int64(0)
	if l.known {
		excess = max(0, l.excess-l.rate*(now-l.last)/1000+1000)
	}
	if excess > l.burst {
		return -1
	}
	l.excess, l.last, l.known = excess, now, true
	return max(0, (excess-l.delay)*1000/l.rate)
}

// Random histories are decided as nginx decides them.
func TestRecipeNginxInRandomHistories(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(26, 1))
	for range 300 {
		perSecond := []int64{1, 2, 4, 5, 8, 10, 20, 100}[random.IntN(8)]
		burst := random.Int64N(12)
		delay := random.Int64N(burst + 1)
		limit, maxWait := nginx(pglimit.PerSecond(perSecond), burst, delay)
		memory, limiter := recipe(t, limit)
		oracle := limitReq{rate: perSecond * 1000, burst: burst * 1000, delay: delay * 1000}
		for now := int64(0); now < 40*1000/perSecond; {
			got, want := delays(t, limiter, 1, maxWait)[0], time.Duration(oracle.ask(now))*ms
			if got != want {
				t.Fatalf("%d/s burst=%d delay=%d at %d ms: %v, nginx %v", perSecond, burst, delay, now, got, want)
			}
			by := random.Int64N(1500/perSecond) * random.Int64N(2)
			memory.Advance(time.Duration(by) * ms)
			now += by
		}
	}
}

// queued waits for its turn.
func queued(ctx context.Context, limiter *pglimit.Limiter, key string) (pglimit.Decision, error) {
	return limiter.Do(ctx, pglimit.Request{Key: key, Tokens: 1, MaxWait: 500 * time.Millisecond})
}

// A caller of Do with MaxWait sleeps until its turn: Sentinel's queueing, and nginx's limit_req with a delay.
func TestRecipeQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{Name: "recipe", Limit: pglimit.Every(100 * ms)})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(t.Context()) //nolint:errcheck // of a test
		began, times := time.Now(), make(chan time.Duration, 8)
		for range 8 {
			go func() {
				d, err := queued(t.Context(), limiter, "k")
				switch {
				case d.Allowed && err == nil:
					times <- time.Since(began).Round(ms) // never sooner than its turn, and a little later
				case errors.Is(err, pglimit.ErrWaitTooLong):
					times <- refused
				default:
					t.Errorf("%+v, %v", d, err)
				}
			}()
		}
		var got []time.Duration
		for range 8 {
			got = append(got, <-times)
		}
		slices.Sort(got)
		if want := []time.Duration{refused, refused, 0, 100 * ms, 200 * ms, 300 * ms, 400 * ms, 500 * ms}; !slices.Equal(got, want) {
			t.Errorf("served after %v, want %v", got, want)
		}
	})
}

// inSomeWindow waits for the next window.
func inSomeWindow(ctx context.Context, limiter *pglimit.Limiter, key string) (pglimit.Group, error) {
	return limiter.DoAll(ctx, pglimit.Request{Key: key, Tokens: 1, MaxWait: 2500 * time.Millisecond})
}

// A fixed window and a wait: resilience4j's RateLimiter, and a semaphore that is filled again each period.
func TestRecipeRefilledEachPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{Name: "recipe", Limit: pglimit.PerSecond(5).Fixed()})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(t.Context()) //nolint:errcheck // of a test
		began, times := time.Now().Truncate(time.Second), make(chan time.Duration, 18)
		for range 18 {
			go func() {
				switch _, err := inSomeWindow(t.Context(), limiter, "k"); {
				case err == nil:
					times <- time.Since(began).Truncate(time.Second)
				case errors.Is(err, pglimit.ErrWaitTooLong):
					times <- refused
				default:
					t.Error(err)
				}
			}()
		}
		var got []time.Duration
		for range 18 {
			got = append(got, <-times)
		}
		slices.Sort(got)
		want := slices.Concat(repeated(3, refused), repeated(5, 0), repeated(5, time.Second), repeated(5, 2*time.Second))
		if !slices.Equal(got, want) {
			t.Errorf("granted after %v, want %v", got, want)
		}
	})
}

// work does the jobs at 10 a second and 1,000 a day.
func work(ctx context.Context, limiter *pglimit.Limiter, jobs <-chan func()) error {
	for job := range jobs {
		_, err := limiter.DoAll(ctx,
			pglimit.Request{Key: "partner", Tokens: 1, Limit: pglimit.PerSecond(10), MaxWait: 25 * time.Hour},
			pglimit.Request{Key: "partner", Tokens: 1, Limiter: "api/day", Limit: pglimit.PerDay(1000).In("Europe/Berlin")})
		if err != nil {
			return err
		}
		job()
	}
	return nil
}

// In three processes, a worker does 2,100 jobs: 1,000 on each day of Berlin, never more than 20 in a second.
func TestRecipeAWorkerAtTwoRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory, jobs := pglimittest.MemoryOn(time.Now), make(chan func())
		perDay, perSecond := make(map[string]int), make(map[int64]int)
		var mu sync.Mutex
		var workers sync.WaitGroup
		began, berlin := time.Now(), time.FixedZone("CET", 3600) // a bubble begins in winter
		for range 3 {
			limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1)})
			if err != nil {
				t.Fatal(err)
			}
			defer limiter.Close(t.Context()) //nolint:errcheck // of a test
			workers.Go(func() {
				if err := work(t.Context(), limiter, jobs); err != nil {
					t.Error(err)
				}
			})
		}
		for range 2100 {
			jobs <- func() {
				mu.Lock()
				defer mu.Unlock()
				perDay[time.Now().In(berlin).Format(time.DateOnly)]++
				perSecond[time.Now().Unix()]++
			}
		}
		close(jobs)
		workers.Wait()
		if want := map[string]int{"2000-01-01": 1000, "2000-01-02": 1000, "2000-01-03": 100}; !maps.Equal(perDay, want) {
			t.Errorf("%v, want %v", perDay, want)
		}
		for second, n := range perSecond {
			if n > 20 {
				t.Errorf("%d in the second %d", n, second)
			}
		}
		if took := time.Since(began); took > 47*time.Hour+time.Minute { // an hour of the first day is over
			t.Errorf("it took %v", took)
		}
	})
}

// both takes one of 20 per 100 ms and of 100 per second.
func both(ctx context.Context, limiter *pglimit.Limiter, key string) (pglimit.Group, error) {
	return limiter.DoAll(ctx,
		pglimit.Request{Key: key, Tokens: 1, Limiter: "api/100ms", Limit: pglimit.Per(20, 100*time.Millisecond)},
		pglimit.Request{Key: key, Tokens: 1, Limiter: "api/s", Limit: pglimit.PerSecond(100)})
}

func TestRecipeTwoRates(t *testing.T) {
	t.Parallel()
	memory, limiter := recipe(t, pglimit.PerSecond(1))
	for i, want := range []struct {
		granted    int           // of 30 at once, every 100 ms
		retryAfter time.Duration // of the next one
		limiter    string        // which denied
	}{
		{20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"},
		{20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"}, {20, 5 * ms, "api/100ms"}, {20, 10 * ms, "api/s"}, {10, 10 * ms, "api/s"}, {10, 10 * ms, "api/s"},
	} {
		granted := 0
		var g pglimit.Group
		for range 30 {
			var err error
			if g, err = both(t.Context(), limiter, "k"); err != nil {
				t.Fatal(err)
			} else if g.Allowed {
				granted++
			}
		}
		if granted != want.granted || g.RetryAfter != want.retryAfter || g.Denied.Limiter != want.limiter {
			t.Errorf("after %d ms: %d granted, then %v from %s; want %+v", i*100, granted, g.RetryAfter, g.Denied.Limiter, want)
		}
		memory.Advance(100 * ms)
	}
}

// In any span: a bucket whose burst and rate add up to the number. A caller who always asks finds the worst span.
func TestRecipeNeverMoreThanInAnySpan(t *testing.T) {
	t.Parallel()
	const most, span = 100, 60_000 // of requests, in so many milliseconds
	for _, c := range []struct {
		limit pglimit.Limit
		worst int
	}{
		{pglimit.PerMinute(most / 2), most}, // which is PerMinute(50).WithBurst(50)
		{pglimit.PerMinute(75).WithBurst(25), most},
		{pglimit.PerMinute(most), 2 * most},
	} {
		memory, limiter := recipe(t, c.limit)
		var granted []int // when
		for now := 0; now <= span; now += 100 {
			for delays(t, limiter, 1, 0)[0] == 0 {
				granted = append(granted, now)
			}
			memory.Advance(100 * ms)
		}
		if len(granted) != c.worst {
			t.Errorf("%v: %d in one span, want %d", c.limit, len(granted), c.worst)
		}
	}
}

// low priority leaves a fifth of the bucket to others.
func lowPriority(ctx context.Context, limiter *pglimit.Limiter, key string) (pglimit.Decision, error) {
	limit := limiter.Limit()
	return limiter.Do(ctx, pglimit.Request{Key: key, Tokens: 1, Limit: limit.WithBurst(limit.Burst * 8 / 10)})
}

func TestRecipeLowPriority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now) // with the memory of denials
		limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{Name: "recipe", Limit: pglimit.PerSecond(100)})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(t.Context()) //nolint:errcheck // of a test
		takes := func(want int, take func(context.Context, *pglimit.Limiter, string) (pglimit.Decision, error)) {
			t.Helper()
			for n := 0; ; n++ {
				if d, err := take(t.Context(), limiter, "k"); err != nil || !d.Allowed {
					if n != want || err != nil {
						t.Errorf("%d were granted, want %d: %v", n, want, err)
					}
					return
				}
			}
		}
		high := func(ctx context.Context, limiter *pglimit.Limiter, key string) (pglimit.Decision, error) {
			return limiter.Allow(ctx, key)
		}
		takes(80, lowPriority)
		takes(20, high)
		time.Sleep(100 * ms) // ten have come back
		takes(0, lowPriority)
		takes(10, high)
		time.Sleep(250 * ms)
		takes(5, lowPriority)
		takes(20, high)
	})
}

// upload takes what a request costs: bytes, 1 MB per second, 8 MB at once.
func upload(ctx context.Context, limiter *pglimit.Limiter, key string, body []byte) (pglimit.Decision, error) {
	return limiter.AllowN(ctx, key, int64(len(body)))
}

func TestRecipeBytes(t *testing.T) {
	t.Parallel()
	memory, limiter := recipe(t, pglimit.PerSecond(1_000_000).WithBurst(8_000_000))
	body := make([]byte, 3_000_000)
	for i, want := range []time.Duration{0, 0, 1000 * ms} {
		if d, err := upload(t.Context(), limiter, "k", body); err != nil || d.Allowed != (want == 0) || !d.Allowed && d.RetryAfter != want {
			t.Errorf("%d: %+v, %v", i, d, err)
		}
	}
	memory.Advance(1000 * ms)
	d, err := upload(t.Context(), limiter, "k", body)
	if err != nil || !d.Allowed || d.Remaining != 0 {
		t.Fatalf("%+v, %v", d, err)
	}
	if _, err := limiter.Settle(t.Context(), d, 1_000_000); err != nil { // it was only a third
		t.Error(err)
	}
	if d, err := limiter.Peek(t.Context(), "k"); err != nil || d.Remaining != 2_000_000 {
		t.Errorf("%+v, %v", d, err)
	}
}

func warn(d pglimit.Decision, mail func(key string, percent int)) {
	for _, percent := range []int{80, 100} {
		if d.Crosses(float64(percent) / 100) {
			mail(d.Key, percent)
		}
	}
}

func TestRecipeNearTheEndOfAQuota(t *testing.T) {
	t.Parallel()
	_, limiter := recipe(t, pglimit.PerHour(10))
	var mails []string
	for n := 1; n <= 12; n++ {
		d, err := limiter.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		warn(d, func(key string, percent int) {
			mails = append(mails, fmt.Sprintf("%s: %d %% with %d", key, percent, n))
		})
	}
	if want := []string{"k: 80 % with 8", "k: 100 % with 10"}; !slices.Equal(mails, want) {
		t.Error(mails)
	}
}

// Every block of Go of the page stands above, or in a test that needs Postgres.
func TestRecipesOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	var source string
	for _, file := range []string{"recipes_test.go", "../integration/several_limits_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source += string(text)
	}
	flat := func(code string) string { return strings.Join(strings.Fields(code), " ") }
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	for _, b := range blocks {
		if !strings.Contains(flat(source), flat(b[1])) {
			t.Errorf("in no test:\n%s", b[1])
		}
	}
	if len(blocks) < 3 || len(blocks)*2 != strings.Count(string(page), "```") {
		t.Errorf("%d blocks of Go", len(blocks))
	}
}
