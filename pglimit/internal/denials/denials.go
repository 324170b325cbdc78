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
type Memory struct {
	denials *otter.Cache[string, *denial]
	ttl     time.Duration
	start   time.Time
	learned atomic.Uint64 // how often something new was learned

	forgotten atomic.Int64 // answers to questions before this time are not recalled, see ForgetAll
}

// denial is what is known of a key. It is never changed, only replaced by a newer one.
type denial struct {
	tokens   int64         // requests for as many or more are denied
	asked    time.Duration // when the question was sent, since the memory's start
	told     time.Duration // when the answer came
	until    time.Duration // when to ask again
	decision rate.Decision
}

// New is a memory of that many keys at most, each for ttl at most.
func New(keys int, ttl time.Duration) (*Memory, error) {
	denials, err := otter.New(&otter.Options[string, *denial]{
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
	denial, known := m.get(request.Key)
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
	if decision.RetryAfter <= 0 || decision.Contended {
		return
	}
	known := min(decision.RetryAfter, m.ttl)
	d := &denial{tokens: max(request.Unit, 1), asked: asked, told: told, until: asked + skew.AtLeast(known), decision: *decision}
	d.decision.Allowed, d.decision.Granted, d.decision.Source = false, 0, rate.FromMemory

	// In one step, so that a key that is forgotten meanwhile stays forgotten.
	m.denials.Compute(request.Key, func(old *denial, found bool) (*denial, otter.ComputeOp) {
		if found && old.asked >= m.forgottenBefore() && (old.asked > asked || old.tokens <= d.tokens && old.until >= d.until) {
			return old, otter.CancelOp // the old one is newer, or denies as much for as long
		}
		m.learned.Add(1)
		return d, otter.WriteOp
	})
}

// Forget drops what is known of a key, whose bucket has got more tokens. Answers to earlier
// questions are not learned after it.
func (m *Memory) Forget(key string) {
	if m == nil {
		return
	}
	m.denials.Set(key, &denial{asked: m.now() + 1})
}

// ForgetAll is Forget for every key.
func (m *Memory) ForgetAll() {
	if m != nil {
		m.forgotten.Store(int64(m.now() + 1))
	}
}

func (m *Memory) forgottenBefore() time.Duration { return time.Duration(m.forgotten.Load()) }

// get returns what is known of a key and not forgotten.
func (m *Memory) get(key string) (*denial, bool) {
	denial, known := m.denials.GetIfPresent(key)
	if known && denial.asked < m.forgottenBefore() {
		return nil, false
	}
	return denial, known
}

// recall returns the decision as of now, if it still holds and covers the request.
func (d *denial) recall(request *rate.Request, now time.Duration) (rate.Decision, bool) {
	// This many must be there for a grant. A peek wants none, and is never answered here.
	wanted := min(request.Unit, request.Tokens)
	if now >= d.until || wanted < d.tokens {
		return rate.Decision{}, false
	}
	age := skew.AtLeast(max(0, now-d.told))
	decision := d.decision
	decision.At = decision.At.Add(age)
	decision.RetryAfter -= age
	decision.ResetAfter = max(0, decision.ResetAfter-age)
	if more := wanted - d.tokens; more > 0 {
		// If tokens are leased, the caller has to wait for them too, not only for the next
		// ones. ResetAfter includes them all.
		decision.RetryAfter += min(request.Limit.RefillTime(more), math.MaxInt64-decision.RetryAfter)
		decision.RetryAfter = max(decision.RetryAfter, decision.ResetAfter-request.Limit.RefillTime(request.Limit.Burst-wanted))
	}
	decision.Remaining = max(decision.Remaining, request.Limit.Burst-request.Limit.Refilled(decision.ResetAfter))
	decision.Remaining = min(decision.Remaining, d.tokens-1) // with more, the request would not have been denied
	return decision, true
}
