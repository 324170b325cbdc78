package pglimit

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

const (
	defaultDenialTTL  = time.Second
	defaultDenialKeys = 1 << 16
)

// memory answers requests that are known to be denied.
//
// A decision says when its Unit of tokens could be granted at the earliest. Until
// then whoever asks for as many or more is denied without asking Postgres again. That
// is exact, as tokens come back with time only, but for what is forgiven or changed
// elsewhere (a Reset, a larger limit, tokens given back): that is noticed when the memory
// ends, after DenialTTL at the latest.
type memory struct {
	denials  *otter.Cache[string, *denial]
	ttl      time.Duration
	start    time.Time
	learned  atomic.Uint64 // how often something new was learned
	counters *counters

	forgotten atomic.Int64 // what was asked before this time is not recalled, see forgetAll
}

// denial is what is known of a key. It does not change; a newer one takes its place.
type denial struct {
	tokens   int64         // as many, or more, are denied
	asked    time.Duration // when the question was sent, since the memory's start
	told     time.Duration // when the answer came
	until    time.Duration // when to ask again
	decision Decision
}

func newMemory(config Config, counters *counters) (*memory, error) {
	denials, err := otter.New(&otter.Options[string, *denial]{
		MaximumSize: orDefault(config.DenialKeys, defaultDenialKeys),
		Executor:    func(task func()) { task() }, // no goroutines
	})
	if err != nil {
		return nil, err
	}
	return &memory{denials: denials, ttl: orDefault(config.DenialTTL, defaultDenialTTL), start: time.Now(), counters: counters}, nil
}

// now counts from the memory's start: cheaper to read than the time of day, and steady.
func (m *memory) now() time.Duration { return time.Since(m.start) }

// recalling is the stage that answers.
func (m *memory) recalling(next decide) decide {
	return func(ctx context.Context, request Request) (Decision, error) {
		if denial, known := m.get(request.Key); known {
			if decision, denied := denial.recall(&request, m.now()); denied {
				m.counters.remembered.add()
				return decision, nil
			}
		}
		return next(ctx, request)
	}
}

// recallAt answers as the stage does, if it can, at the time.
func (m *memory) recallAt(now time.Duration, request *Request) (Decision, bool) {
	denial, known := m.get(request.Key)
	if !known {
		return Decision{}, false
	}
	return denial.recall(request, now)
}

// learning is the stage that sees what Postgres decides. That was at some time between the
// question and the answer. The memory ends as if it was at the question, rather too soon
// than too late; a caller is told to come back as if it was at the answer, rather too late
// than too soon.
func (m *memory) learning(next take) take {
	return func(ctx context.Context, requests []Request) ([]Decision, error) {
		asked := m.now()
		decisions, err := next(ctx, requests)
		if err == nil {
			told := m.now()
			for i := range requests {
				m.learn(&requests[i], &decisions[i], asked, told)
			}
		}
		return decisions, err
	}
}

// learn from a denial, and from a grant that left less than its Unit.
func (m *memory) learn(request *Request, decision *Decision, asked, told time.Duration) {
	if decision.RetryAfter <= 0 || decision.Contended {
		return
	}
	known := min(decision.RetryAfter, m.ttl)
	d := &denial{tokens: max(request.Unit, 1), asked: asked, told: told, until: asked + atLeast(known), decision: *decision}
	d.decision.Allowed, d.decision.Granted = false, 0

	// In one step, so that what was forgotten meanwhile stays so.
	m.denials.Compute(request.Key, func(old *denial, found bool) (*denial, otter.ComputeOp) {
		if found && old.asked >= m.forgottenBefore() && (old.asked > asked || old.tokens <= d.tokens && old.until >= d.until) {
			return old, otter.CancelOp // it is newer, or says as much
		}
		m.learned.Add(1)
		return d, otter.WriteOp
	})
}

// atLeast is how much time passes on another machine's clock while so much passes on this
// one's, or the other way round: they may run apart by up to 0.05 % while one of them is
// being adjusted.
func atLeast(d time.Duration) time.Duration { return d - d/1024 }

// forget a key whose bucket has more tokens than was thought. What was asked before is
// not learned afterwards.
func (m *memory) forget(key string) {
	m.denials.Set(key, &denial{asked: m.now() + 1})
}

// forgetAll is forget for every key.
func (m *memory) forgetAll() { m.forgotten.Store(int64(m.now() + 1)) }

func (m *memory) forgottenBefore() time.Duration { return time.Duration(m.forgotten.Load()) }

// get what is known of a key and not forgotten.
func (m *memory) get(key string) (*denial, bool) {
	denial, known := m.denials.GetIfPresent(key)
	if known && denial.asked < m.forgottenBefore() {
		return nil, false
	}
	return denial, known
}

// recall the decision, if it holds for the request at the time.
func (d *denial) recall(request *Request, now time.Duration) (Decision, bool) {
	if now >= d.until || request.Tokens < d.tokens {
		return Decision{}, false // a peek wants no tokens, and is never answered from here
	}
	age := atLeast(max(0, now-d.told))
	decision := d.decision
	decision.At = decision.At.Add(age)
	decision.RetryAfter -= age
	decision.ResetAfter = max(0, decision.ResetAfter-age)
	if more := request.Tokens - d.tokens; more > 0 {
		// Where tokens are set aside it is not only the next ones that have to be waited for;
		// ResetAfter knows of them all.
		decision.RetryAfter += min(request.Limit.RefillTime(more), math.MaxInt64-decision.RetryAfter)
		decision.RetryAfter = max(decision.RetryAfter, decision.ResetAfter-request.Limit.RefillTime(request.Limit.Burst-request.Tokens))
	}
	decision.Remaining = max(decision.Remaining, request.Limit.Burst-request.Limit.Refilled(decision.ResetAfter))
	decision.Remaining = min(decision.Remaining, d.tokens-1) // or it would not have been denied
	return decision, true
}
