// Package combine sends requests that arrive during a call together in the next one.
package combine

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxBatch bounds how many requests one call decides, and so how long the next callers have to wait.
const maxBatch = 1024

// maxSingle is maxBatch by a rule that is rate.Apart: each request is a round trip, in a transaction that holds their
// rows.
const maxSingle = 32

func isGroup(unit []rate.Request) bool { return unit[0].Group != 0 }

// Functions are what a Combiner calls.
type Functions struct {
	// Send asks the strategy. The requests of a group have one Group.
	Send func(ctx context.Context, requests []rate.Request) ([]rate.Decision, error)

	// GiveBack returns tokens to their buckets.
	GiveBack func(ctx context.Context, refunds []rate.Refund) error

	// Rule is the strategy's: it divides a decision among callers.
	Rule rate.Rule

	// Shard is the number of the shard that has a key: a call has keys of one shard. Lane is the lane of a key, of so
	// many: the keys of a shard should be in one or a few. -1, or nil: there is one shard, and keys are spread over
	// the lanes of New.
	Shard func(key string) int
	Lane  func(key string, lanes int) int

	// Recall answers the requests of a unit that is known to be denied. Learned counts how often
	// something new was learned for it.
	Learned func() uint64
	Recall  func(requests []rate.Request, decisions []rate.Decision) bool
}

// Combiner sends units together that arrive while a call is under way.
//
// Keys are spread over a few lanes; groups have one more. A lane has one call under way at most: a
// unit that finds its lane idle goes out at once. Later units form a queue, which is the
// next call when this one returns. So no request waits for a timer, callers are served
// in order of arrival, and a process never contends with itself for a row. The busier it
// gets, the larger the batches: their callers share the cost of a round trip, and with
// Durable of a flush to disk.
type Combiner struct {
	wait.Calls

	do      Functions
	seed    maphash.Seed
	keys    int       // lanes for keys of one shard
	lanes   []lane    // the last is that of groups
	waiters sync.Pool // of *waiter that are not in use
}

// ShardLanes is the usual number of shards, and so of lanes where there are any. With so many, or 16, 8 and so on, a
// lane has the keys of one: a node that does not answer holds up no other's.
const ShardLanes = 32

// New is a Combiner with that many lanes for keys, or, by Lane, at least ShardLanes.
func New(lanes int, do Functions) *Combiner {
	c := &Combiner{do: do, seed: maphash.MakeSeed(), keys: lanes}
	if do.Lane != nil {
		lanes = max(lanes, ShardLanes)
	}
	c.lanes = make([]lane, lanes+1)
	c.Begin()
	ofKeys, ofGroups := make(chan struct{}, maxPatient), make(chan struct{}, maxPatient)
	for i := range c.lanes {
		c.lanes[i] = lane{combiner: c, number: i, mu: new(sync.Mutex), patience: ofKeys}
	}
	c.lanes[lanes].patience = ofGroups
	return c
}

// Decide waits for the answers in the caller's goroutine. A single unit that finds its lane idle is sent there
// too. Other calls are made in a lane's goroutine, so that a caller whose context ends can leave while the call
// goes on. The units of one lane join its queue together.
func (c *Combiner) Decide(ctx context.Context, units []*claims.Claim) {
	if err := ctx.Err(); err != nil {
		for _, u := range units {
			u.Fail(err)
		}
		return
	}
	var one [1]*waiter
	waiters := one[:0]
	for _, u := range units {
		waiters = append(waiters, c.newWaiter(ctx, u))
	}
	if len(units) > 1 {
		inOrder := slices.Clone(waiters)
		slices.SortStableFunc(inOrder, func(a, b *waiter) int { return a.home.number - b.home.number })
		for len(inOrder) > 0 {
			n := 1
			for n < len(inOrder) && inOrder[n].home == inOrder[0].home {
				n++
			}
			inOrder[0].home.join(inOrder[:n])
			inOrder = inOrder[n:]
		}
	} else if home := waiters[0].home; home.joinAlone(waiters[0]) {
		home.sendOwn()
	}
	for i, w := range waiters {
		c.await(ctx, w, units[i])
	}
}

func (c *Combiner) laneOf(unit []rate.Request) *lane {
	keys := len(c.lanes) - 1
	if isGroup(unit) {
		return &c.lanes[keys]
	}
	if c.do.Lane != nil {
		if i := c.do.Lane(unit[0].Key, keys); i >= 0 {
			return &c.lanes[i]
		}
	}
	return &c.lanes[maphash.String(c.seed, unit[0].Key)%uint64(c.keys)]
}

// await the answer of a waiter that has joined its lane.
func (c *Combiner) await(ctx context.Context, w *waiter, u *claims.Claim) {
	left := false
	decisions, err := w.Await(ctx, func() bool {
		left = w.home.leave(w)
		return left
	})
	if err != nil {
		u.Fail(err)
	} else {
		copy(u.Decisions, decisions)
	}
	if !left {
		c.recycle(w)
	}
}

// Close lets waiting callers have their answers as long as ctx lasts, and returns when no
// goroutine is left. The error is that of ctx if a call or a caller was given up.
func (c *Combiner) Close(ctx context.Context) error {
	if c == nil {
		return nil
	}
	for i := range c.lanes {
		c.lanes[i].close()
	}
	return c.Calls.Close(ctx, func() (busy bool) {
		for i := range c.lanes {
			busy = c.lanes[i].abort() || busy
		}
		return busy
	})
}
