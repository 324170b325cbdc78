package denials_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const ttl = time.Minute

var limit = rate.PerSecond(10).WithBurst(20)

func ask(key string, tokens, unit int64) *rate.Request {
	return &rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

// denied is the answer that so many tokens come back after a while.
func denied(after time.Duration) rate.Decision {
	return rate.Decision{RetryAfter: after, ResetAfter: 2 * time.Second, At: time.Unix(1000, 0)}
}

type memory struct {
	*denials.Memory
	t *testing.T
}

func remembering(t *testing.T) memory {
	t.Helper()
	m, err := denials.New(100, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return memory{m, t}
}

func (m memory) learn(r *rate.Request, d rate.Decision, asked time.Duration) {
	m.Learn([]rate.Request{*r}, []rate.Decision{d}, asked)
}

func (m memory) knows(what string, r *rate.Request, want bool) {
	m.t.Helper()
	if d, known := m.Recall(r); known != want || d.Allowed || d.Granted != 0 || known && d.Source != rate.FromMemory {
		m.t.Errorf("%s: known %t, %+v", what, known, d)
	}
}

// Whoever asks for as much as was denied, or more, is denied until it is due, and not at that
// instant; who asks for less, or peeks, is not.
func TestWhoIsDenied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		m.learn(ask("a", 9, 3), denied(time.Second), m.Now()) // as for three callers who want three each
		for tokens, want := range map[int64]bool{0: false, 2: false, 3: true, 9: true, 20: true} {
			m.knows("at once", ask("a", tokens, tokens), want)
		}
		m.knows("another key", ask("b", 3, 3), false)
		const due = time.Second - time.Second/1024
		time.Sleep(due - 1)
		m.knows("a moment before it is due", ask("a", 3, 3), true)
		time.Sleep(time.Nanosecond)
		m.knows("when it is due", ask("a", 3, 3), false)
	})
}

// A peek says when one token is there. It is known of takes then, and of no peek.
func TestAPeekIsLearnedOfAndNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		m.learn(ask("a", 0, 0), denied(time.Second), m.Now())
		m.knows("a peek", ask("a", 0, 0), false)
		m.knows("a take", ask("a", 1, 1), true)
	})
}

// Of two answers the one to the later question counts, in whatever order they come. If both
// say the same nothing new was learned.
func TestTheLaterQuestionCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		first := m.Now()
		time.Sleep(time.Millisecond)
		second := m.Now()
		m.learn(ask("a", 1, 1), denied(50*time.Millisecond), second)
		m.learn(ask("a", 1, 1), denied(time.Second), first) // before tokens were given back, say
		m.learn(ask("b", 1, 1), denied(50*time.Millisecond), first)
		m.learn(ask("b", 1, 1), denied(time.Second), second)
		m.learn(ask("c", 5, 5), denied(time.Second), first)
		m.learn(ask("c", 1, 1), denied(500*time.Millisecond), second)
		if n := m.Learned(); n != 5 {
			t.Errorf("learned %d times", n)
		}
		m.learn(ask("a", 1, 1), denied(50*time.Millisecond), second)
		m.learn(ask("c", 1, 1), denied(500*time.Millisecond), second)
		m.learn(ask("c", 2, 2), denied(400*time.Millisecond), second)
		if n := m.Learned(); n != 5 {
			t.Errorf("learned %d times, though the last said nothing new", n)
		}
		m.knows("one, where five were denied first", ask("c", 1, 1), true)
		time.Sleep(100 * time.Millisecond)
		m.knows("the earlier answer came last", ask("a", 1, 1), false)
		m.knows("the later answer came last", ask("b", 1, 1), true)
	})
}

// What was asked up to the instant in which a key was forgotten is not known afterwards, also
// where the answer comes later. What is asked the moment after it is.
func TestWhatWasAskedBeforeItWasForgotten(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(memory){
		"one key":  func(m memory) { m.Forget("a") },
		"all keys": func(m memory) { m.ForgetAll() },
	} {
		synctest.Test(t, func(t *testing.T) {
			m := remembering(t)
			asked := m.Now()
			m.learn(ask("a", 1, 1), denied(time.Second), asked)
			forget(m)
			m.knows(name+": what was known", ask("a", 1, 1), false)
			m.learn(ask("a", 1, 1), denied(time.Second), asked)
			m.knows(name+": asked in the same instant", ask("a", 1, 1), false)
			time.Sleep(time.Nanosecond)
			m.learn(ask("a", 1, 1), denied(100*time.Millisecond), m.Now())
			m.knows(name+": asked a moment later", ask("a", 1, 1), true)
		})
	}
}

// What is told ages with the time that has passed since the answer, and never below nothing;
// and a wait that no Duration can hold is as long as one can be.
func TestWhatIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		asked := m.Now()
		time.Sleep(10 * time.Millisecond)
		m.learn(ask("a", 2, 2), rate.Decision{Allowed: true, Granted: 2, RetryAfter: time.Second, ResetAfter: 1900 * time.Millisecond, At: time.Unix(1000, 0)}, asked)
		m.learn(ask("odd", 2, 2), rate.Decision{RetryAfter: time.Second, ResetAfter: 100 * time.Millisecond}, asked)
		const passed = 512 * time.Millisecond
		const age = passed - passed/1024
		time.Sleep(passed)
		d, known := m.Recall(ask("a", 2, 2))
		// 1,388.5 ms until it is full: 13.9 of 20 are missing, and 6 are there; but not two.
		want := rate.Decision{RetryAfter: time.Second - age, ResetAfter: 1900*time.Millisecond - age, At: time.Unix(1000, 0).Add(age), Remaining: 1, Source: rate.FromMemory}
		if !known || d != want {
			t.Errorf("%t, %+v\nwant %+v", known, d, want)
		}
		if d, known := m.Recall(ask("odd", 2, 2)); !known || d.ResetAfter != 0 || d.Remaining != 1 {
			t.Errorf("%t, %+v", known, d)
		}
		long := ask("long", 1, 1)
		long.Limit = rate.Limit{Tokens: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 2}
		m.learn(long, rate.Decision{RetryAfter: math.MaxInt64 - 1}, m.Now())
		long.Tokens = 2
		if d, known := m.Recall(long); !known || d.RetryAfter < math.MaxInt64-1 {
			t.Errorf("%t, %+v", known, d)
		}
	})
}

// Several answers are learned of each; a grant that leaves enough, and a row that was held,
// say nothing; and nothing is known for longer than the memory lasts.
func TestWhatIsLearned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		held := denied(time.Second)
		held.Contended = true
		m.Learn(
			[]rate.Request{*ask("a", 1, 1), *ask("b", 1, 1), *ask("c", 1, 1), *ask("d", 1, 1)},
			[]rate.Decision{denied(time.Hour), {Allowed: true, Granted: 1}, held, denied(time.Hour)}, m.Now())
		for key, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
			m.knows(key, ask(key, 1, 1), want)
		}
		time.Sleep(ttl)
		m.knows("after its time", ask("a", 1, 1), false)

		var none *denials.Memory
		none.Learn([]rate.Request{*ask("a", 1, 1)}, []rate.Decision{denied(time.Hour)}, none.Now())
		none.Forget("a")
		none.ForgetAll()
		memory{none, t}.knows("nothing is remembered", ask("a", 1, 1), false)
		if none.Learned() != 0 {
			t.Error("no memory has learned")
		}
	})
}
