package denials_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const ttl = time.Minute

var limit = rate.PerSecond(10).WithBurst(20)

func ask(key string, tokens, unit int64) *rate.Request {
	return &rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

// denied is the answer that so many tokens come back after a while. learn completes it.
func denied(after time.Duration) rate.Decision {
	return rate.Decision{RetryAfter: after, At: time.Unix(1000, 0)}
}

type memory struct {
	*denials.Memory
	t *testing.T
}

func remembering(t *testing.T) memory {
	t.Helper()
	m, err := denials.New(100, ttl, bucket.Rule{})
	if err != nil {
		t.Fatal(err)
	}
	return memory{m, t}
}

func (m memory) learn(r *rate.Request, d rate.Decision, asked time.Duration) {
	if d.ResetAfter == 0 && d.RetryAfter > 0 {
		d.ResetAfter = d.RetryAfter + time.Duration(r.Limit.Burst-max(r.Unit, 1))*r.Limit.Token()
	}
	m.Learn([]rate.Request{*r}, []rate.Decision{d}, asked)
}

func (m memory) knows(what string, r *rate.Request, want bool) {
	m.t.Helper()
	if d, known := m.Recall(r); known != want || d.Allowed || d.Granted != 0 || known && d.Source != rate.FromMemory {
		m.t.Errorf("%s: known %t, %+v", what, known, d)
	}
}

// A request for more than is there is denied until that is due, and not at that instant. One for less, or
// a peek, is not.
func TestWhoIsDenied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		const wait = 50 * time.Millisecond
		few := denied(wait) // 2.5 are there
		few.Remaining = 2
		m.learn(ask("a", 9, 3), few, m.Now()) // as for three callers who want three each
		for tokens, want := range map[int64]bool{0: false, 1: false, 2: false, 3: true, 9: true, 20: true} {
			m.knows("at once", ask("a", tokens, tokens), want)
		}
		m.knows("another key", ask("b", 3, 3), false)
		time.Sleep(bucket.AtLeast(wait) - 2)
		m.knows("a moment before it is due", ask("a", 3, 3), true)
		time.Sleep(2 * time.Nanosecond)
		m.knows("when it is due", ask("a", 3, 3), false)
		m.knows("when it is due, more", ask("a", 5, 5), true)
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

// Of two answers the one to the later question counts, in whatever order they come.
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
		"one key":  func(m memory) { m.Forget(ask("a", 1, 1).Bucket()) },
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
		none.Forget(ask("a", 1, 1).Bucket())
		none.ForgetAll()
		memory{none, t}.knows("nothing is remembered", ask("a", 1, 1), false)
		if none.Learned() != 0 {
			t.Error("no memory has learned")
		}
	})
}

// A denial holds under the limit it was made under. A later answer under another limit, whether
// a denial or a grant, ends it: what was granted may come back faster than the first predicted.
func TestADenialHoldsUnderItsLimitOnly(t *testing.T) {
	t.Parallel()
	under := func(limit rate.Limit) *rate.Request {
		r := ask("a", 1, 1)
		r.Limit = limit
		return r
	}
	one, other := rate.PerSecond(1), rate.PerSecond(2)
	granted := rate.Decision{Allowed: true, Granted: 1}
	for _, test := range []struct {
		name   string
		answer rate.Decision // under the other limit
		asked  time.Duration // after the first
		want   [2]bool       // whether a denial is known under one, and under the other
	}{
		{"denied", denied(time.Second), time.Millisecond, [2]bool{false, true}},
		{"granted", granted, time.Millisecond, [2]bool{false, false}},
		{"the last was granted", rate.Decision{Allowed: true, Granted: 1, RetryAfter: time.Second}, time.Millisecond, [2]bool{false, true}},
		{"denied for a shorter time", denied(time.Millisecond), time.Millisecond, [2]bool{false, true}},
		{"denied before", denied(time.Second), -time.Millisecond, [2]bool{true, false}},
		{"contended", rate.Decision{Contended: true, RetryAfter: time.Second}, time.Millisecond, [2]bool{true, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := remembering(t)
			time.Sleep(time.Second)
			first := m.Now()
			m.learn(under(one), denied(time.Second), first)
			m.knows(test.name+": first, under the one", under(one), true)
			m.knows(test.name+": first, under the other", under(other), false)
			m.learn(under(other), test.answer, first+test.asked)
			m.knows(test.name+": then, under the one", under(one), test.want[0])
			m.knows(test.name+": then, under the other", under(other), test.want[1])
		})
	}
}

// A grant that leaves enough says nothing of a bucket of which nothing is known, and an earlier one
// nothing of one that has denied since.
func TestAGrantThatLeavesEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		asked := m.Now()
		time.Sleep(time.Millisecond)
		m.learn(ask("a", 1, 1), denied(time.Second), asked)
		m.learn(ask("a", 1, 1), rate.Decision{Allowed: true, Granted: 1, ResetAfter: time.Second, At: time.Unix(999, 0)}, asked)
		m.knows("an earlier grant", ask("a", 1, 1), true)
		m.learn(ask("b", 1, 1), rate.Decision{Allowed: true, Granted: 1, Remaining: 10, ResetAfter: time.Second}, asked)
		m.knows("nothing was known", ask("b", 20, 20), false)

		m.Forget(ask("a", 1, 1).Bucket())
		time.Sleep(time.Millisecond)
		asked = m.Now()
		time.Sleep(time.Millisecond)
		m.learn(ask("a", 1, 1), rate.Decision{Allowed: true, Granted: 1}, m.Now())
		m.learn(ask("a", 1, 1), denied(time.Second), asked)
		m.knows("a grant after all was forgotten", ask("a", 1, 1), true)
	})
}

// A blocked key is denied whatever is asked for, until its block ends, although the tokens come
// back later.
func TestWhatIsKnownOfABlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		blocked := rate.Decision{Remaining: 3, RetryAfter: 1400 * time.Millisecond, ResetAfter: 1700 * time.Millisecond, At: time.Unix(1000, 0), Blocked: true, BlockedFor: time.Second}
		m.learn(ask("a", 17, 17), blocked, m.Now())
		m.knows("a peek", ask("a", 0, 1), false)
		time.Sleep(500 * time.Millisecond)
		for tokens, want := range map[int64]time.Duration{1: 500 * time.Millisecond, 14: 600 * time.Millisecond, 20: 1200 * time.Millisecond} {
			d, known := m.Recall(ask("a", tokens, tokens))
			if !known || !d.Blocked || d.RetryAfter.Round(10*time.Millisecond) != want || d.BlockedFor.Round(10*time.Millisecond) != 500*time.Millisecond || d.Remaining != 7 {
				t.Errorf("%d: %+v, %t: want a RetryAfter of %v", tokens, d, known, want)
			}
		}
		time.Sleep(500 * time.Millisecond)
		m.knows("after the block", ask("a", 17, 17), false)

		longer := rate.Decision{RetryAfter: time.Second, ResetAfter: 2 * time.Second, At: time.Unix(1000, 0), Blocked: true, BlockedFor: time.Second}
		m.learn(ask("b", 1, 1), longer, m.Now())
		if d, known := m.Recall(ask("b", 15, 15)); !known || d.RetryAfter != 1500*time.Millisecond { // a token is there after 100 ms
			t.Errorf("%+v, %t: want a RetryAfter of 1.5s", d, known)
		}
	})
}

// A block is known for as long as the memory lasts, like any other answer: so a reset by another process
// is noticed.
func TestABlockIsKnownForTheTTLAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := remembering(t)
		asked, lasted := m.Now(), time.Second
		time.Sleep(lasted) // the answer came late
		m.learn(ask("a", 1, 1), rate.Decision{RetryAfter: time.Hour, ResetAfter: time.Second, Blocked: true, BlockedFor: time.Hour}, asked)
		time.Sleep(ttl - ttl/1024 - 1 - lasted)
		m.knows("a moment before", ask("a", 1, 1), true)
		time.Sleep(time.Nanosecond)
		m.knows("after the ttl", ask("a", 1, 1), false)
	})
}

// windows is a rule of fixed windows: all tokens come back at once.
type windows struct{}

func (windows) Later(d rate.Decision, _, n int64, passed time.Duration, more int64) rate.Decision {
	if d.Remaining = min(d.Remaining+more, d.Limit.Burst); passed >= d.ResetAfter {
		d.Remaining = d.Limit.Burst
	}
	d.ResetAfter = max(0, d.ResetAfter-passed)
	if d.RetryAfter = 0; d.Remaining < n {
		d.RetryAfter = d.ResetAfter
	}
	d.At = d.At.Add(passed)
	return d
}

func (windows) Denies(d rate.Decision, _, n int64, passed time.Duration) bool {
	return d.Remaining < n && passed < d.ResetAfter
}

// The memory knows no rule but the strategy's.
func TestTheMemoryAsksTheRule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := denials.New(100, ttl, windows{})
		if err != nil {
			t.Fatal(err)
		}
		// Of 20 in a window that ends in a second, 15 are used.
		memory{m, t}.learn(ask("a", 8, 8), rate.Decision{Remaining: 5, RetryAfter: time.Second, ResetAfter: time.Second}, m.Now())
		time.Sleep(512 * time.Millisecond)
		for n, want := range map[int64]bool{5: false, 6: true, 8: true, 20: true} {
			d, known := m.Recall(ask("a", n, n))
			if known != want || known && (d.Remaining != 5 || d.RetryAfter != 488_500*time.Microsecond || d.ResetAfter != d.RetryAfter) {
				t.Errorf("%d: %t, %+v", n, known, d)
			}
		}
	})
}
