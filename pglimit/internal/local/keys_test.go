package local_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/local"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// With all places taken, a new key is denied rather than one forgotten that has used up its
// share. Those that are full again make room, but they are looked for once a second at most.
func TestTheNumberOfKeysIsBounded(t *testing.T) {
	t.Parallel()
	b, limit := local.New().Of(1), rate.PerSecond(1).WithBurst(2)
	// One is full after a second and a half.
	if d := b.Take(ask("between", rate.Every(1500*time.Millisecond), 1), noon); !d.Allowed {
		t.Fatalf("%+v", d)
	}
	for key := range maxKeys - 1 {
		// The even ones use one token, and are full after a second; the odd ones two.
		if d := b.Take(ask(strconv.Itoa(key), limit, int64(1+key%2)), noon); !d.Allowed {
			t.Fatalf("key %d: %+v", key, d)
		}
	}
	newcomers := 0
	take := func(when time.Duration) bool {
		newcomers++
		d := b.Take(ask(fmt.Sprint("new ", newcomers), limit, 1), noon.Add(when))
		if !d.Allowed && d != (rate.Decision{RetryAfter: time.Second}) {
			t.Errorf("%+v", d)
		}
		return d.Allowed
	}
	if take(0) || take(999*time.Millisecond) {
		t.Error("one key more than there is room for")
	}
	if d := b.Take(ask("1", limit, 1), noon); d.Allowed {
		t.Errorf("a key was forgotten: %+v", d)
	}
	for range maxKeys / 2 {
		if !take(time.Second) {
			t.Fatalf("newcomer %d: half of the keys are full again", newcomers)
		}
	}
	if take(time.Second) || take(1999*time.Millisecond) {
		t.Error("one key more than there is room for, or it was looked twice in a second")
	}
	if d := b.Take(ask("1", limit, 2), noon.Add(time.Second)); d.Allowed || d.Remaining != 1 {
		t.Errorf("a key that was not full was forgotten: %+v", d)
	}
	if !take(2 * time.Second) {
		t.Error("those that were full two seconds later")
	}
}

// A group takes of each bucket or of none, whichever of them lacks tokens, and says which.
func TestAGroupIsTakenWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	limit := rate.Every(time.Hour).WithBurst(10)
	for _, empty := range [][]bool{{}, {true}, {false, true}, {false, false, true}, {true, false, true}, {true, true, true}} {
		b := local.New().Of(1)
		group := []rate.Request{*ask("0", limit, 2), *ask("1", limit, 3), *ask("2", limit, 4)}
		denied := false
		for i := range empty {
			if denied = denied || empty[i]; empty[i] {
				b.Take(ask(strconv.Itoa(i), limit, 10), noon)
			}
		}
		for i, d := range b.TakeAll(group, noon) {
			lacks, granted, left := i < len(empty) && empty[i], int64(0), int64(10)
			switch {
			case lacks:
				left = 0
			case !denied:
				granted, left = group[i].Tokens, 10-group[i].Tokens
			}
			if d.Allowed == lacks || d.Granted != granted || d.Remaining != left {
				t.Errorf("empty: %v: request %d: %+v, want %d granted and %d left", empty, i, d, granted, left)
			}
			if d := b.Take(ask(strconv.Itoa(i), limit, 0), noon); d.Remaining != left {
				t.Errorf("empty: %v: bucket %d has %d left, want %d", empty, i, d.Remaining, left)
			}
		}
	}
}

// Nor does a group make more keys than there is room for. What it takes of keys that are there needs none.
func TestAGroupKeepsTheBoundOfKeys(t *testing.T) {
	t.Parallel()
	b, limit := local.New().Of(1), rate.PerSecond(1).WithBurst(5)
	for key := range maxKeys - 2 {
		b.Take(ask(strconv.Itoa(key), limit, 2), noon)
	}
	takes := func(want bool, when time.Duration, keys ...string) {
		t.Helper()
		var group []rate.Request
		for _, key := range keys {
			group = append(group, *ask(key, limit, 1))
		}
		decisions, all := b.TakeAll(group, noon.Add(when)), true
		for _, d := range decisions {
			all = all && d.Granted == 1
			if !want && d.Granted > 0 || !d.Allowed && d != (rate.Decision{RetryAfter: time.Second}) {
				t.Errorf("%v: %+v", keys, d)
			}
		}
		if all != want {
			t.Errorf("%v at %v: %+v, want them granted: %t", keys, when, decisions, want)
		}
	}
	takes(false, 0, "a", "b", "c")
	takes(false, 0, "a", "0", "b", "c")
	takes(true, 0, "a", "0", "b")
	takes(true, 0, "b", "1", "a")
	takes(false, 0, "1", "c")
	if d := b.Take(ask("c", limit, 0), noon); d.Allowed {
		t.Errorf("a key more than there is room for: %+v", d)
	}
	takes(true, 2*time.Second, "c", "d", "2") // the others are full again
}
