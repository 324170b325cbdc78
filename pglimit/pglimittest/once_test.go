package pglimittest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func named(id string, limit rate.Limit, tokens int64) rate.Request {
	r := bucket("k", limit, tokens)
	r.ID, r.IDTTL = id, time.Minute
	return r
}

func takeOnce(t *testing.T, memory *pglimittest.Strategy, r rate.Request) rate.Decision {
	t.Helper()
	return take(t, memory, r)[0]
}

// A request that is sent again gets its first decision, until the ttl is over.
func TestAnIDIsChargedOnce(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerHour(3)
	first := takeOnce(t, memory, named("1", limit, 2))
	memory.Advance(time.Minute - time.Microsecond)
	if again := takeOnce(t, memory, named("1", limit, 2)); again != first || first.Granted != 2 {
		t.Errorf("%+v, and again %+v", first, again)
	}
	// A denial is not kept, and another ID is another request.
	for range 2 {
		if d := takeOnce(t, memory, named("2", limit, 2)); d.Allowed || d.Remaining != 1 {
			t.Errorf("%+v", d)
		}
	}
	if d := takeOnce(t, memory, named("2", limit, 1)); !d.Allowed {
		t.Errorf("%+v", d)
	}
	memory.Advance(time.Microsecond)
	if d := takeOnce(t, memory, named("1", limit, 2)); d.Allowed {
		t.Errorf("after its ttl: %+v", d)
	}
	// A reset fills the bucket; what was granted to an ID was granted.
	if err := memory.Reset(t.Context(), nil, "test", "k"); err != nil {
		t.Error(err)
	}
	takeOnce(t, memory, named("2", limit, 1))
	if d := take(t, memory, bucket("k", limit, 0))[0]; d.Remaining != 3 {
		t.Errorf("%+v", d)
	}
}

// A Limiter whose limit is changed between two tries of a request tells the first decision, under
// the first limit.
func TestAnIDIsChargedOnceWhenTheLimitChanges(t *testing.T) {
	t.Parallel()
	limit := rate.PerHour(5)
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{Name: "test", Limit: limit, Timeout: pglimit.NoTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = limiter.Close(t.Context()) }()
	first, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 2, ID: "req-1"})
	if err != nil || first.Limit != limit || first.Remaining != 3 {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, changed := range []pglimit.Limit{limit.WithBurst(6), rate.PerSecond(7)} {
		if err := limiter.SetLimit(changed); err != nil {
			t.Fatal(err)
		}
		if again, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 2, ID: "req-1"}); err != nil || again != first {
			t.Errorf("under %v: %+v, %v; the first was %+v", changed, again, err, first)
		}
		if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 3, ID: "req-1"}); err == nil {
			t.Errorf("of 3 tokens: %+v", d)
		}
	}
}

// After a step back an ID is kept for its ttl from then on, and not for the length of the step.
func TestAnIDAfterAStepBack(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerSecond(1).WithBurst(3)
	first := takeOnce(t, memory, named("1", limit, 1))
	memory.Advance(-time.Hour)
	if again := takeOnce(t, memory, named("1", limit, 1)); again != first {
		t.Errorf("%+v, want %+v", again, first)
	}
	memory.Advance(time.Minute)
	if d := takeOnce(t, memory, named("1", limit, 1)); d.At.Equal(first.At) {
		t.Errorf("after its ttl: %+v", d)
	}
}

func TestBadIDsAreErrors(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerHour(3)
	takeOnce(t, memory, named("1", limit, 2))
	for name, r := range map[string]rate.Request{
		"other tokens":  named("1", limit, 1),
		"another limit": named("1", limit.WithBurst(4), 1),
	} {
		_, err := memory.Take(t.Context(), nil, []rate.Request{r})
		if bad := (*rate.RequestError)(nil); !errors.As(err, &bad) || bad.Field != "ID" {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	for _, ttl := range []time.Duration{-1, 0, rate.MinIDTTL - 1, rate.MaxIDTTL + 1} {
		r := named("2", limit, 1)
		r.IDTTL = ttl
		if _, err := memory.Take(t.Context(), nil, []rate.Request{r}); err == nil {
			t.Errorf("a ttl of %v: no error", ttl)
		}
	}
	if d := take(t, memory, bucket("k", limit, 0))[0]; d.Remaining != 1 {
		t.Errorf("one of these calls took something: %+v", d)
	}
}
