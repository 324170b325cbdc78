// Package denials remembers which requests Postgres would deny.
package denials

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/pglimit/ratelimit/pglimit/internal/skew"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Memory answers requests that are known to be denied.
//
// A decision says when its Unit of tokens could be granted at the earliest. Until then, a
// request for as many tokens or more is denied without asking Postgres again. That is exact,
// because tokens only come back with time. The exceptions are changes by other processes (a
// Reset, a larger limit, tokens given back): they are noticed after the ttl at the latest.
//
// A decision says nothing about a request under another limit. And what is taken under another
// limit may come back faster than was predicted. So a bucket's denial is recalled under its own
// limit only, and dropped by any later answer under another.
type Memory struct {
	denials *otter.Cache[rate.Bucket, *denial]
	ttl     time.Duration
	start   time.Time
	learned atomic.Uint64 // how often something new was learned

	forgotten atomic.Int64 // answers to questions before this time are not recalled, see ForgetAll
}

// denial is what is known of a bucket. It is never changed, only replaced by a newer one.
type denial struct {
	tokens   int64         // requests for as many or more are denied
	asked    time.Duration // when the question was sent, since the memory's start
	told     time.Duration // when the answer came
	until    time.Duration // when to ask again
	decision rate.Decision // under decision.Limit
}

// New is a memory of that many buckets at most, each for ttl at most.
func New(keys int, ttl time.Duration) (*Memory, error) {
	denials, err := otter.New(&otter.Options[rate.Bucket, *denial]{
		MaximumSize: keys,
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	return &Memory{denials: denials, ttl: ttl, start: time.Now()}, nil
}

// now counts from the memory's start: cheaper to read than the time of day, and never steps.
func (m *Memory) now() time.Duration { return time.Since(m.start) }

// Recall answers a request that is known to be denied. A nil Memory knows of none.
func (m *Memory) Recall(request *rate.Request) (rate.Decision, bool) {
	if m == nil {
		return rate.Decision{}, false
	}
	denial, known := m.get(request.Bucket())
	if !known {
		return rate.Decision{}, false
	}
	return denial.recall(request, m.now())
}

// Learned is how often something new was learned.
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

// Learn remembers decisions that were made at some time between asked and now. The memory ends
// as if they were made at asked, rather too soon than too late. A caller is told to come back
// as if they were made now, rather too late than too soon.
func (m *Memory) Learn(requests []rate.Request, decisions []rate.Decision, asked time.Duration) {
	if m == nil {
		return
	}
	told := m.now()
	for i := range requests {
		m.learn(&requests[i], &decisions[i], asked, told)
	}
}

// learn remembers a denial, or a grant that left less than its Unit.
func (m *Memory) learn(request *rate.Request, decision *rate.Decision, asked, told time.Duration) {
	switch {
	case decision.Contended:
		return
	case decision.RetryAfter <= 0:
		m.unlearn(request)
		return
	}
	tokens, known := max(request.Unit, 1), min(decision.RetryAfter, m.ttl)
	if decision.Blocked { // whatever is asked for
		tokens, known = 1, min(decision.BlockedFor, m.ttl)
	}
	d := &denial{tokens: tokens, asked: asked, told: told, until: asked + skew.AtLeast(known), decision: *decision}
	d.decision.Allowed, d.decision.Granted, d.decision.Delay, d.decision.Source, d.decision.Limit = false, 0, 0, rate.FromMemory, request.Limit

	// In one step, so that a bucket that is forgotten meanwhile stays forgotten.
	m.denials.Compute(request.Bucket(), func(old *denial, found bool) (*denial, otter.ComputeOp) {
		if found && old.asked >= m.forgottenBefore() && (old.asked > asked || old.covers(d)) {
			return old, otter.CancelOp // the old one is newer, or denies as much for as long
		}
		m.learned.Add(1)
		return d, otter.WriteOp
	})
}

// covers says whether whatever the other denies is denied already.
func (d *denial) covers(other *denial) bool {
	return d.decision.Limit == other.decision.Limit && d.tokens <= other.tokens && d.until >= other.until
}

// unlearn drops what was learned under another limit than that of the request, which was granted.
func (m *Memory) unlearn(request *rate.Request) {
	if old, known := m.get(request.Bucket()); known && old.tokens > 0 && old.decision.Limit != request.Limit {
		m.Forget(request.Bucket())
	}
}

// Forget drops what is known of a bucket that has got more tokens. Answers to earlier questions
// are not learned after it.
func (m *Memory) Forget(bucket rate.Bucket) {
	if m == nil {
		return
	}
	m.denials.Set(bucket, &denial{asked: m.now() + 1})
}

// ForgetAll is Forget for every bucket.
func (m *Memory) ForgetAll() {
	if m != nil {
		m.forgotten.Store(int64(m.now() + 1))
	}
}

func (m *Memory) forgottenBefore() time.Duration { return time.Duration(m.forgotten.Load()) }

// get returns what is known of a bucket and not forgotten.
func (m *Memory) get(bucket rate.Bucket) (*denial, bool) {
	denial, known := m.denials.GetIfPresent(bucket)
	if known && denial.asked < m.forgottenBefore() {
		return nil, false
	}
	return denial, known
}

// recall returns the decision as of now, if it still holds and covers the request.
func (d *denial) recall(request *rate.Request, now time.Duration) (rate.Decision, bool) {
	// This many must be there for a grant. A peek wants none, and is never answered here.
	wanted := min(request.Unit, request.Tokens)
	if now >= d.until || wanted < d.tokens || request.Limit != d.decision.Limit {
		return rate.Decision{}, false
	}
	age := skew.AtLeast(max(0, now-d.told))
	decision := d.decision
	decision.At = decision.At.Add(age)
	decision.RetryAfter -= age
	decision.ResetAfter = max(0, decision.ResetAfter-age)
	if decision.Blocked {
		decision.BlockedFor -= age
		decision.RetryAfter = max(decision.BlockedFor, decision.ResetAfter-request.Limit.RefillTime(request.Limit.Burst-wanted))
		decision.Remaining = max(decision.Remaining, request.Limit.Burst-request.Limit.Refilled(decision.ResetAfter))
		return decision, true
	}
	if more := wanted - d.tokens; more > 0 {
		// If tokens are leased, the caller has to wait for them too, not only for the next
		// ones. ResetAfter includes them all.
		decision.RetryAfter += min(request.Limit.RefillTime(more), math.MaxInt64-decision.RetryAfter)
		decision.RetryAfter = max(decision.RetryAfter, decision.ResetAfter-request.Limit.RefillTime(request.Limit.Burst-wanted))
	}
	// The tokens come too late also if the decision was made when it was asked for, and that
	// clock is faster.
	if request.Ahead > 0 && skew.AtLeast(decision.RetryAfter)+skew.AtLeast(age)-(now-d.asked) <= request.Ahead {
		return rate.Decision{}, false
	}
	decision.Remaining = max(decision.Remaining, request.Limit.Burst-request.Limit.Refilled(decision.ResetAfter))
	decision.Remaining = min(decision.Remaining, d.tokens-1) // with more, the request would not have been denied
	return decision, true
}
