// Package denials remembers which requests Postgres would deny.
package denials

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Memory answers requests that are known to be denied.
//
// It keeps the newest answer about a bucket, if that denied a request or left less than its Unit. The
// strategy's rule says what the answer means for later requests. That is exact, because this process
// hears of what it takes, and tokens only come back with time. The exceptions are what other processes
// do: tokens that they take are not counted, and a Reset, a larger limit, or tokens given back, are
// noticed after the ttl at the latest. (A denial may also miss a grant whose answer overtook it, until the
// next answer: a grant is not kept where nothing was known. Combining prevents that.)
//
// An answer says nothing about a request under another limit. And what is taken under another limit
// may come back faster than was predicted. So an answer is recalled under its own limit only, and
// replaced by any later answer under another. The same goes for rules of the table pglimit.limits.
type Memory struct {
	answers *otter.Cache[rate.Bucket, *answer]
	rule    rate.Rule
	ttl     time.Duration
	start   time.Time
	learned atomic.Uint64 // how often a denial was learned

	forgotten atomic.Int64 // answers to questions before this time are not recalled, see ForgetAll
}

// answer is what is known of a bucket. It is never changed, only replaced by a newer one.
type answer struct {
	unit     int64         // of the request
	asked    time.Duration // when the question was sent, since the memory's start
	told     time.Duration // when the answer came
	until    time.Duration // when it means nothing any more
	decision rate.Decision // as for a denial, under decision.Limit
}

// New is a memory of that many buckets at most, each for ttl at most, of a strategy with that rule.
func New(keys int, ttl time.Duration, rule rate.Rule) (*Memory, error) {
	answers, err := otter.New(&otter.Options[rate.Bucket, *answer]{
		MaximumSize: keys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	return &Memory{answers: answers, rule: rule, ttl: ttl, start: time.Now()}, nil
}

// now counts from the memory's start: cheaper to read than the time of day, and never steps.
func (m *Memory) now() time.Duration { return time.Since(m.start) }

// Learned is how often a denial was learned.
func (m *Memory) Learned() uint64 {
	if m == nil {
		return 0
	}
	return m.learned.Load()
}

// Now is the time at which a question is sent, for Learn.
func (m *Memory) Now() time.Duration {
	if m == nil {
		return 0
	}
	return m.now()
}

// Learn remembers decisions that were made at some time between asked and now, in their order.
// Requests are denied as if they were made at asked, rather too short than too long. A caller is told
// to come back as if they were made now, rather too late than too soon.
func (m *Memory) Learn(requests []rate.Request, decisions []rate.Decision, asked time.Duration) {
	if m == nil {
		return
	}
	told := m.now()
	for i := range requests {
		m.learn(&requests[i], &decisions[i], asked, told)
	}
}

func (m *Memory) learn(request *rate.Request, decision *rate.Decision, asked, told time.Duration) {
	if decision.Contended {
		return
	}
	of, denies := request.Bucket(), decision.RetryAfter > 0
	if !denies {
		// A grant that leaves enough is remembered in the place of an older answer only. So the grants
		// of keys that are never denied do not crowd out the denials of others.
		if old, known := m.get(of); !known || told >= old.until { // a forgotten one has none
			return
		}
	}
	lasts := min(m.ttl, max(decision.RetryAfter, decision.ResetAfter))
	a := &answer{unit: request.Unit, asked: asked, told: told, until: asked + bucket.AtLeast(lasts), decision: *decision}
	d := &a.decision
	d.Allowed, d.Granted, d.Source, d.Limit = false, 0, rate.FromMemory, request.Limit
	if denies && !d.Blocked && !m.rule.Denies(*d, a.unit, a.unit, 0) {
		return // denials have to be counted
	}
	if d.Blocked {
		d.RetryAfter = 0 // it says when the block ends, perhaps not when the tokens are there
	}

	// In one step, so that a bucket that is forgotten meanwhile stays forgotten.
	m.answers.Compute(of, func(old *answer, found bool) (*answer, otter.ComputeOp) {
		if found && old.asked >= m.forgottenBefore() && old.newer(a) {
			return old, otter.CancelOp
		}
		if denies {
			m.learned.Add(1)
		}
		return a, otter.WriteOp
	})
}

// newer says whether the answer was decided after the other one, which came later. If both were under
// way at the same time, only Postgres's clock shows it.
func (a *answer) newer(other *answer) bool {
	switch {
	case other.asked >= a.told || a.forgotten():
		return other.asked < a.asked
	case !other.decision.At.Equal(a.decision.At):
		return other.decision.At.Before(a.decision.At)
	}
	return other.asked < a.asked
}

// forgotten says that the bucket was forgotten, at asked.
func (a *answer) forgotten() bool { return a.decision.Limit == rate.Limit{} }

// Forget drops what is known of a bucket that has got more tokens, or lost some that no answer tells of.
// Answers to earlier questions are not learned after it.
func (m *Memory) Forget(of rate.Bucket) {
	if m == nil {
		return
	}
	m.answers.Set(of, &answer{asked: m.now() + 1})
}

// ForgetAll is Forget for every bucket.
func (m *Memory) ForgetAll() {
	if m != nil {
		m.forgotten.Store(int64(m.now() + 1))
	}
}

func (m *Memory) forgottenBefore() time.Duration { return time.Duration(m.forgotten.Load()) }

// get returns what is known of a bucket, and not forgotten.
func (m *Memory) get(of rate.Bucket) (a *answer, known bool) {
	a, known = m.answers.GetIfPresent(of)
	if !known || a.asked < m.forgottenBefore() {
		return nil, false
	}
	return a, true
}

// Recall answers a request that is known to be denied. A nil Memory knows of none.
func (m *Memory) Recall(request *rate.Request) (d rate.Decision, known bool) {
	if m == nil || request.Tokens == 0 { // a peek is never answered here
		return d, false
	}
	a, known := m.get(request.Bucket())
	if !known || request.Limit != a.decision.Limit {
		return d, false
	}
	now := m.now()
	if now >= a.until || !a.denies(request, m.rule, bucket.AtMost(max(0, now-a.asked))) {
		return d, false
	}
	passed := bucket.AtLeast(max(0, now-a.told))
	d = m.rule.Later(a.decision, a.unit, request.Unit, passed, 0)
	d.Delay = 0
	if d.Blocked {
		d.BlockedFor -= passed
		d.RetryAfter = max(d.RetryAfter, d.BlockedFor)
	}
	return d, true
}

// denies says whether the request is denied as long as no more time has passed.
func (a *answer) denies(request *rate.Request, rule rate.Rule, passed time.Duration) bool {
	within := passed + min(request.Ahead, math.MaxInt64-passed)
	if a.decision.Blocked {
		return passed < a.decision.BlockedFor
	}
	return rule.Denies(a.decision, a.unit, request.Unit, within)
}
