package pglimit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/adjust"
	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/internal/lease"
	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/pglimit/internal/newkeys"
	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/internal/top"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New] or [NewSQL], once, and share it; it is safe for concurrent use, and holds no connection
// and, without Config.Limits, Config.Adjust and Config.Top, no goroutine while idle. [Limiter.Close] it before its pool.
type Limiter struct {
	// answers are the stages that need neither tokens nor what was learned from Postgres, in order: see local.
	answers []func(*claim) (answered bool)

	// The stages. A stage that is nil is switched off.
	leases   *lease.Leases
	denials  *denials.Memory
	combiner *combine.Combiner
	circuit  *circuit.Breaker
	newKeys  *newkeys.Stage
	looks    *combine.Combiner // of newKeys, apart from what takes: a flood's are many, and lock nothing
	rules    *limits.Stage     // of Config.Limits
	share    *adjust.Share     // of the limits, by Config.Adjust
	top      *top.User         // of Config.Top
	nodes    *Nodes            // whose shards have the keys; nil: all keys are where session is

	session   Session
	strategy  Strategy
	config    Config
	limit     *atomic.Pointer[Limit] // shared with the Limiters that On makes
	timeout   time.Duration          // of one decision
	failures  *failureLog
	waiting   *wait.Callers // for Postgres; closed with the Limiter
	queue     *queue.Queue  // the callers of Wait
	again     chan struct{} // has an element for each caller who asks once more, when a window has ended
	counters  *counters
	observers *observers // of round trips
	parent    *Limiter   // of which this one is On a session; else nil

	eachMemory func(do func(*denials.Memory)) // of all Limiters of this process that share its buckets
}

// Limit is the limit of each key, as of now: see [Limiter.SetLimit].
func (l *Limiter) Limit() Limit { return *l.limit.Load() }

// SetLimit changes the limit of each key. Requests that are under way keep the limit that they began with; all later
// ones have the new one, also those of [Limiter.On]. What a key has used stays used, see [Config].Limit. What was
// reserved before (Wait, Reserve) keeps its promised times: if the limit is raised, it comes on top of what newer
// callers get. If the limit is not valid, or is one that the strategy cannot keep, the error is a [*LimitError], or
// if it does not go with [Config].Block a [*BlockError], and nothing changes.
//
// It changes this process only.
func (l *Limiter) SetLimit(limit Limit) error {
	if err := checkLimit(l.strategy, limit); err != nil {
		return err
	}
	if err := checkBlock(l.config.Block, limit); err != nil {
		return err
	}
	l.limit.Store(&limit)
	return nil
}

// Config is what the Limiter was made with, its defaults filled in, and with the limit of now.
func (l *Limiter) Config() Config {
	c := l.config
	c.Timeout, c.Limit = l.timeout, l.Limit()
	return c
}

// ObserveRoundTrips tells a further function what [Config].OnRoundTrip is told, until stop is called. The adapters
// promlimit and otellimit use it for their histograms.
func (l *Limiter) ObserveRoundTrips(observe func(ctx context.Context, trip RoundTrip)) (stop func()) {
	l.observers.change(func(all []observer) []observer { return append(all, &observe) })
	return func() {
		l.observers.change(func(all []observer) []observer {
			return slices.DeleteFunc(all, func(o observer) bool { return o == &observe })
		})
	}
}

type observer = *func(ctx context.Context, trip RoundTrip)

// observers are replaced, never changed: calls read them meanwhile. nil: there are none.
type observers struct {
	changing sync.Mutex
	all      atomic.Pointer[[]observer]
}

func (o *observers) change(change func(all []observer) []observer) {
	o.changing.Lock()
	defer o.changing.Unlock()
	var all []observer
	if now := o.all.Load(); now != nil {
		all = slices.Clone(*now)
	}
	if all = change(all); len(all) == 0 {
		o.all.Store(nil)
		return
	}
	o.all.Store(&all)
}

// Strategy is what decides for the Limiter.
func (l *Limiter) Strategy() Strategy { return l.strategy }

// forget what is remembered of a bucket that has got more tokens, or may have.
func (l *Limiter) forget(bucket rate.Bucket) {
	l.eachMemory(func(m *denials.Memory) { m.Forget(bucket) })
}

func (l *Limiter) blocks() bool { return l.config.Block != Block{} }
