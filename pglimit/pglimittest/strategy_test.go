package pglimittest_test

import (
	"cmp"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// bucket is a request for tokens of the bucket of a test, all or nothing.
func bucket(key string, limit rate.Limit, tokens int64) rate.Request {
	return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: tokens}
}

func take(t *testing.T, memory *pglimittest.Strategy, requests ...rate.Request) []rate.Decision {
	t.Helper()
	decisions, err := memory.Take(t.Context(), nil, requests)
	if err != nil {
		t.Fatal(err)
	}
	return decisions
}

func newLimiter(t *testing.T, strategy rate.Strategy, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	config.Name, config.Timeout = "api", cmp.Or(config.Timeout, pglimit.NoTimeout)
	limiter, err := pglimittest.New(strategy, config)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func allow(t *testing.T, limiter *pglimit.Limiter, want bool) rate.Decision {
	t.Helper()
	d, err := limiter.Allow(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if d.Allowed != want {
		t.Fatalf("allowed %v, want %v: %+v", d.Allowed, want, d)
	}
	return d
}

// The clock stands still until the test moves it, and what the limiter says follows it at once:
// no stage of the limiter counts time by another clock, whatever the configuration says.
func TestOnlyTheTestMovesTheClock(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.Config{
		Limit:  pglimit.PerSecond(1),
		Leases: pglimit.Leases{On: true}, Memory: pglimit.Memory{TTL: time.Hour},
	})
	if c := limiter.Config(); !c.Combine.Off || !c.Memory.Off || c.Leases.On || !c.Breaker.Off {
		t.Errorf("a stage is on: %+v", c)
	}
	start := memory.Now()
	for i := range 3 {
		granted := allow(t, limiter, true)
		if want := start.Add(time.Duration(i) * time.Second); !granted.At.Equal(want) || granted.ResetAfter != time.Second {
			t.Errorf("granted at %v, full in %v; want %v", granted.At, granted.ResetAfter, want)
		}
		memory.Advance(time.Second - time.Microsecond)
		if denied := allow(t, limiter, false); denied.RetryAfter != time.Microsecond || denied.Source != pglimit.FromDatabase {
			t.Errorf("%+v", denied)
		}
		memory.Advance(time.Microsecond)
	}
	// After a step back the bucket owes what it owed: nobody is locked out for as long as the step.
	allow(t, limiter, true)
	memory.Advance(-time.Hour)
	allow(t, limiter, false)
	memory.Advance(time.Second)
	allow(t, limiter, true)
}

// A group takes from all of its buckets or from none, and says which had the tokens.
func TestAGroupIsAllOrNothing(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	for i, want := range []struct {
		key        string
		granted    int64
		first, all bool
	}{{"a", 1, true, true}, {"a", 1, true, true}, {"a", 0, false, true}, {"b", 1, true, true}, {"b", 0, true, false}} {
		group := []rate.Request{bucket(want.key, rate.PerHour(2), 1), bucket("all", rate.PerHour(3), 1)}
		group[0].Group, group[1].Group = 1, 1
		of := take(t, memory, group...)
		if of[0].Granted != want.granted || of[1].Granted != want.granted || of[0].Allowed != want.first || of[1].Allowed != want.all {
			t.Errorf("group %d: %+v, want %+v", i, of, want)
		}
	}
}

// Limiters of one strategy share their buckets by name, those of two do not.
func TestBucketsAreOfTheStrategy(t *testing.T) {
	t.Parallel()
	memory, config := pglimittest.Memory(), pglimit.Config{Limit: pglimit.PerHour(1)}
	allow(t, newLimiter(t, memory, config), true)
	allow(t, newLimiter(t, memory, config), false)
	allow(t, newLimiter(t, pglimittest.Memory(), config), true)
}

// Inside a bubble the whole limiter, with its stages, has the strategy's clock: what it remembers
// is over in time, and the circuit breaker hears when the outage is.
func TestTheProductionLimiterInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{
			Name: "api", Limit: pglimit.PerSecond(100).WithBurst(1), Leases: pglimit.Leases{On: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(t.Context()) //nolint:errcheck // there is nothing to give back
		for range 3 {
			allow(t, limiter, true)
			allow(t, limiter, false)
			if d := allow(t, limiter, false); d.Source != pglimit.FromMemory {
				t.Errorf("denied from %v", d.Source)
			}
			time.Sleep(10 * time.Millisecond)
		}

		memory.Fail(pglimit.ErrUnavailable)
		for limiter.Stats().Open == 0 {
			if _, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		memory.Fail(nil)
		time.Sleep(time.Second)
		allow(t, limiter, true)
	})
}

// The example of the package comment: a Wait sleeps by the bubble's clock.
func TestAWaitInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, err := pglimittest.New(pglimittest.MemoryOn(time.Now), pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1), MaxWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close(t.Context()) //nolint:errcheck // there is nothing to give back
		for i, want := range []time.Duration{0, time.Second, time.Second} {
			began := time.Now()
			if _, err := limiter.Wait(t.Context(), "k"); err != nil || time.Since(began).Round(10*time.Millisecond) != want {
				t.Errorf("wait %d took %v, %v", i, time.Since(began), err)
			}
		}
	})
}

func TestFailMakesEachCallFail(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.Config{Limit: pglimit.PerHour(1)})
	outage := errors.Join(pglimit.ErrUnavailable, errors.New("of this test"))
	memory.Fail(outage)
	ctx, one := t.Context(), bucket("k", rate.PerHour(1), 1)
	for name, call := range map[string]func() error{
		"Allow":    func() error { _, err := limiter.Allow(ctx, "k"); return err },
		"Reset":    func() error { return limiter.Reset(ctx, "k") },
		"ResetAll": func() error { _, err := limiter.ResetAll(ctx); return err },
		"GiveBack": func() error { return memory.GiveBack(ctx, nil, []rate.Refund{{Request: one, At: memory.Now()}}) },
		"Lease": func() error {
			_, err := memory.Lease(ctx, nil, rate.LeaseRequest{Limiter: "test", Key: "k", Limit: one.Limit, Tokens: 1, Share: 1, TTL: time.Second})
			return err
		},
		"Sweep":        func() error { _, err := memory.Sweep(ctx, nil, 0, 1); return err },
		"sign of life": func() error { _, err := memory.Pool().Exec(ctx, "select 1"); return err },
	} {
		if err := call(); !errors.Is(err, outage) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	memory.Fail(nil)
	allow(t, limiter, true) // nothing was taken
	if _, err := memory.Pool().Exec(ctx, "select 1"); err != nil {
		t.Errorf("no sign of life: %v", err)
	}
}

// Behind the pool there is no database: a statement is an error, and no panic.
func TestThePoolHasNoDatabase(t *testing.T) {
	t.Parallel()
	on, ctx := postgres.OnPool(pglimittest.Memory().Pool()), t.Context()
	var n int
	for name, call := range map[string]func() error{
		"Exec":          func() error { _, err := on.Exec(ctx, "select 2"); return err },
		"Row":           func() error { return on.Row(ctx, "select 2", nil, &n) },
		"Pipeline":      func() error { _, err := on.Pipeline(ctx, rate.Statement{SQL: "select 2", Into: []any{&n}}); return err },
		"OneConnection": func() error { return on.OneConnection(ctx, func(rate.Session) error { return nil }) },
	} {
		if err := call(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestClocksOutOfRange(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(2061, 1, 1, 0, 0, 0, 0, time.UTC)} {
		memory := pglimittest.MemoryOn(func() time.Time { return at })
		if _, err := memory.Take(t.Context(), nil, []rate.Request{bucket("k", rate.PerSecond(1), 1)}); err == nil {
			t.Errorf("at %v: no error", at)
		}
	}
}

// What has meant nothing for a minute is forgotten, and only that.
func TestSweep(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	take(t, memory, bucket("second", rate.PerSecond(1), 1), bucket("hour", rate.PerHour(1), 1))
	take(t, memory, named("1", rate.PerHour(1), 1)) // its answer is kept for a minute
	denied := bucket("hour", rate.PerHour(1), 1)    // counted for ten seconds
	denied.Block = &twoInTen
	take(t, memory, denied)
	// A lease for ten minutes, of what takes a second to come back after that.
	lease := rate.LeaseRequest{Limiter: "test", Key: "leased", Limit: rate.PerSecond(1), Tokens: 1, Share: 1, TTL: 10 * time.Minute}
	if l, err := memory.Lease(t.Context(), nil, lease); err != nil || l.Tokens != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	before := time.Duration(0)
	for _, test := range []struct {
		at      time.Duration // since the start
		removed int64
	}{
		{time.Minute + second - 1000, 0}, {time.Minute + second, 1}, // the bucket of "second"
		{time.Minute + 10*second - 1000, 0}, {time.Minute + 10*second, 1}, // the denial
		{2*time.Minute - 1000, 0}, {2 * time.Minute, 1}, // the ID
		{11*time.Minute + second - 1000, 0}, {11*time.Minute + second, 1}, // the lease
		{time.Hour + time.Minute - 1000, 0}, {time.Hour + time.Minute, 2}, // the buckets of "hour" and "k"
	} {
		memory.Advance(test.at - before)
		before = test.at
		swept, err := memory.Sweep(t.Context(), nil, 0, 1)
		if err != nil || !swept.Done || swept.Removed != test.removed {
			t.Errorf("at %v: %+v, %v; want %d removed", test.at, swept, err, test.removed)
		}
	}
}
