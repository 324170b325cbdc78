package pglimittest_test

import (
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
