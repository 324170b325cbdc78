package pglimittest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const second = time.Second

// twoInTen blocks a key after two denials within ten seconds: for a minute, then two, then three.
var twoInTen = rate.Block{After: 2, Within: 10 * second, For: time.Minute, Max: 3 * time.Minute, Forget: time.Hour}

func takeOrBlock(t *testing.T, memory *pglimittest.Strategy, r rate.Request) rate.Decision {
	t.Helper()
	r.Block = &twoInTen
	return take(t, memory, r)[0]
}

// wantsBlock checks a decision: allowed, or denied, and blocked for so long.
func wantsBlock(t *testing.T, d rate.Decision, allowed bool, blocked time.Duration) {
	t.Helper()
	if d.Allowed != allowed || d.Blocked != (blocked > 0) || d.BlockedFor != blocked || d.RetryAfter < blocked {
		t.Errorf("%+v; want allowed %v, blocked for %v", d, allowed, blocked)
	}
}

func TestAKeyIsBlockedAndForgiven(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	one, peek := bucket("k", rate.PerSecond(1), 1), bucket("k", rate.PerSecond(1), 0)
	// block asks for tokens that are not there, until the key is blocked for so long.
	block := func(blocked time.Duration) {
		t.Helper()
		wantsBlock(t, takeOrBlock(t, memory, one), true, 0)
		wantsBlock(t, takeOrBlock(t, memory, one), false, 0)
		wantsBlock(t, takeOrBlock(t, memory, peek), false, 0)
		wantsBlock(t, takeOrBlock(t, memory, one), false, blocked)
	}
	for _, blocked := range []time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 3 * time.Minute} {
		block(blocked)
		memory.Advance(blocked - second)
		wantsBlock(t, takeOrBlock(t, memory, peek), false, second)
		wantsBlock(t, takeOrBlock(t, memory, one), false, second)
		if d := take(t, memory, peek)[0]; !d.Allowed {
			t.Errorf("Take knows nothing of blocks: %+v", d)
		}
		memory.Advance(second)
	}
	memory.Advance(time.Hour)
	block(time.Minute)
	// A step back does not block for longer, and a reset ends it.
	memory.Advance(-24 * time.Hour)
	wantsBlock(t, takeOrBlock(t, memory, one), false, time.Minute)
	memory.Advance(59 * second)
	wantsBlock(t, takeOrBlock(t, memory, one), false, second)
	if err := memory.Reset(t.Context(), nil, one.Limiter, one.Key); err != nil {
		t.Error(err)
	}
	block(time.Minute)
	if removed, err := memory.ResetAll(t.Context(), nil, one.Limiter); removed != 2 || err != nil {
		t.Errorf("%d removed, %v", removed, err)
	}
	block(time.Minute)
}

// Denials of different spans do not add up.
func TestDenialsFarApartDoNotBlock(t *testing.T) {
	t.Parallel()
	memory, one := pglimittest.Memory(), bucket("k", rate.PerHour(1), 1)
	wantsBlock(t, takeOrBlock(t, memory, one), true, 0)
	for range 5 {
		wantsBlock(t, takeOrBlock(t, memory, one), false, 0)
		memory.Advance(10 * second)
	}
	wantsBlock(t, takeOrBlock(t, memory, one), false, 0)
	memory.Advance(10*second - time.Microsecond)
	wantsBlock(t, takeOrBlock(t, memory, one), false, time.Minute)
}

func TestBadBlocksAreErrors(t *testing.T) {
	t.Parallel()
	memory, one := pglimittest.Memory(), bucket("k", rate.PerHour(2), 1)
	one.Block = new(rate.Block)
	_, err := memory.Take(t.Context(), nil, []rate.Request{one})
	if bad := (*rate.BlockError)(nil); !errors.As(err, &bad) || bad.Field != "After" {
		t.Errorf("the error is %v", err)
	}
	for name, spoil := range map[string]func(*rate.Request){
		"in units": func(r *rate.Request) { r.Tokens = 2 },
		"ahead":    func(r *rate.Request) { r.Ahead = second },
		"an ID":    func(r *rate.Request) { r.ID = "1" },
		"no key":   func(r *rate.Request) { r.Key = "" },
	} {
		r := one
		spoil(&r)
		if _, err := memory.Take(t.Context(), nil, []rate.Request{r}); !errors.As(err, new(*rate.RequestError)) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if d := take(t, memory, bucket("k", rate.PerHour(2), 0))[0]; d.Remaining != 2 {
		t.Errorf("one of these calls took something: %+v", d)
	}
}

// What is no longer needed is swept: IDs and denials too.
func TestSweepForgetsIDsAndDenials(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	takeOnce(t, memory, named("1", rate.PerSecond(1), 1))     // kept for a minute
	takeOrBlock(t, memory, bucket("k", rate.PerSecond(1), 1)) // denied, counted for ten seconds
	for _, test := range []struct {
		after   time.Duration
		removed int64
	}{{time.Minute, 0}, {second, 1}, {9 * second, 1}, {50*second - time.Microsecond, 0}, {time.Microsecond, 1}} {
		memory.Advance(test.after)
		if swept, err := memory.Sweep(t.Context(), nil, 0, 1); err != nil || swept.Removed != test.removed {
			t.Errorf("%v later: %+v, %v; want %d removed", test.after, swept, err, test.removed)
		}
	}
}
