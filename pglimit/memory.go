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
}

// denial is what is known of a key. It does not change; a newer one takes its place.
type denial struct {
	tokens   int64         // as many, or more, are denied
	asked    time.Duration // when the question was sent, since the memory's start
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
		if denial, known := m.denials.GetIfPresent(request.Key); known {
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
	denial, known := m.denials.GetIfPresent(request.Key)
	if !known {
		return Decision{}, false
	}
	return denial.recall(request, now)
}

// learning is the stage that sees what Postgres decides. Its times count from when the
// question was sent: the decision came later, so the memory ends too soon rather than
// too late.
func (m *memory) learning(next take) take {
	return func(ctx context.Context, requests []Request) ([]Decision, error) {
		asked := m.now()
		decisions, err := next(ctx, requests)
		if err == nil {
			for i := range requests {
				m.learn(&requests[i], &decisions[i], asked)
			}
		}
		return decisions, err
	}
}

// learn from a denial, and from a grant that left less than its Unit.
func (m *memory) learn(request *Request, decision *Decision, asked time.Duration) {
	if decision.RetryAfter <= 0 || decision.Contended {
		return
	}
	known := min(decision.RetryAfter, m.ttl)
	// Clocks of two machines may run apart by up to 0.05 % while one is being
	// adjusted, and this one must not be the slower.
	known -= known / 1024
	d := &denial{tokens: max(request.Unit, 1), asked: asked, until: asked + known, decision: *decision}
	d.decision.Allowed, d.decision.Granted = false, 0

	// In one step, so that what was forgotten meanwhile stays so.
	m.denials.Compute(request.Key, func(old *denial, found bool) (*denial, otter.ComputeOp) {
		if found && (old.asked > asked || old.tokens <= d.tokens && old.until >= d.until) {
			return old, otter.CancelOp // it is newer, or says as much
		}
		m.learned.Add(1)
		return d, otter.WriteOp
	})
}

// forget a key whose bucket has more tokens than was thought. What was asked before is
// not learned afterwards.
func (m *memory) forget(key string) {
	m.denials.Set(key, &denial{asked: m.now() + 1})
}

// recall the decision, if it holds for the request at the time.
func (d *denial) recall(request *Request, now time.Duration) (Decision, bool) {
	if now >= d.until || request.Tokens < d.tokens {
		return Decision{}, false // a peek wants no tokens, and is never answered from here
	}
	age := now - d.asked
	decision := d.decision
	decision.At = decision.At.Add(age)
	decision.RetryAfter -= age
	if more := request.Tokens - d.tokens; more > 0 {
		more := request.Limit.refillTime(more)
		decision.RetryAfter += min(more, math.MaxInt64-decision.RetryAfter)
	}
	decision.ResetAfter = max(0, decision.ResetAfter-age)
	decision.Remaining = max(decision.Remaining, request.Limit.Capacity()-request.Limit.refilled(decision.ResetAfter))
	return decision, true
}
