package pglimittest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func named(id string, limit rate.Limit, tokens int64) rate.Request {
	r := bucket("k", limit, tokens)
	r.ID, r.IDTTL = id, time.Minute
	return r
}

// A request that is sent again gets its first decision, until the ttl is over.
func TestAnIDIsChargedOnce(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerHour(3)
	first := take(t, memory, named("1", limit, 2))[0]
	memory.Advance(time.Minute - time.Microsecond)
	if again := take(t, memory, named("1", limit, 2))[0]; again != first || first.Granted != 2 {
		t.Errorf("%+v, and again %+v", first, again)
	}
	// Also under another limit. It cannot be another number of tokens.
	if again := take(t, memory, named("1", limit.WithBurst(4), 2))[0]; again.Limit != limit || !again.At.Equal(first.At) {
		t.Errorf("%+v, and again %+v", first, again)
	}
	_, err := memory.Take(t.Context(), nil, []rate.Request{named("1", limit, 1)})
	if bad := (*rate.RequestError)(nil); !errors.As(err, &bad) || bad.Field != "ID" {
		t.Errorf("the error is %v", err)
	}
	// A denial is not kept, and another ID is another request.
	for _, want := range []struct{ tokens, granted int64 }{{2, 0}, {2, 0}, {1, 1}} {
		if d := take(t, memory, named("2", limit, want.tokens))[0]; d.Granted != want.granted {
			t.Errorf("%+v, want %+v", d, want)
		}
	}
	memory.Advance(time.Microsecond)
	if d := take(t, memory, named("1", limit, 2))[0]; d.Allowed {
		t.Errorf("after its ttl: %+v", d)
	}
	// A reset fills the bucket; what was granted to an ID was granted.
	if err := memory.Reset(t.Context(), nil, "test", "k"); err != nil {
		t.Error(err)
	}
	take(t, memory, named("2", limit, 1))
	if d := take(t, memory, bucket("k", limit, 0))[0]; d.Remaining != 3 {
		t.Errorf("%+v", d)
	}
}

// After a step back an ID is kept for its ttl from then on, and not for the length of the step.
func TestAnIDAfterAStepBack(t *testing.T) {
	t.Parallel()
	memory, limit := pglimittest.Memory(), rate.PerSecond(1).WithBurst(3)
	first := take(t, memory, named("1", limit, 1))[0]
	memory.Advance(-time.Hour)
	if again := take(t, memory, named("1", limit, 1))[0]; again != first {
		t.Errorf("%+v, want %+v", again, first)
	}
	memory.Advance(time.Minute)
	if d := take(t, memory, named("1", limit, 1))[0]; d.At.Equal(first.At) {
		t.Errorf("after its ttl: %+v", d)
	}
}
