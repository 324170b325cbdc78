package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Allow takes one token of the key's bucket, if it is there.
//
// A denial is a Decision, not an error. A [*RequestError] means that the key is not
// valid. Any other error means that no decision is known; [Config.OnError] may have
// chosen it.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN takes n tokens of the key's bucket, all or none. If n is more than the
// burst, or less than one, the error is a [*RequestError].
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 1 {
		return Decision{}, tooFew(n)
	}
	return l.decideOne(ctx, &rate.Request{Key: key, Tokens: n}, nil)
}

// Peek looks at the key's bucket and takes nothing. Allowed says whether Allow
// would have been granted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decideOne(ctx, &rate.Request{Key: key}, nil)
}

// Do decides a request: see [Request]. Without Tokens it is a peek, which takes nothing.
//
// An invalid request is a [*RequestError], or a [*LimitError] if the strategy cannot keep its limit, or Postgres does
// not know its time zone. If the strategy does not know Ahead or ID, the error satisfies
// errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) Do(ctx context.Context, request Request) (Decision, error) {
	if request.MaxWait != 0 {
		return l.wait(ctx, request, request.MaxWait)
	}
	asked := request.asked()
	return l.decideOne(ctx, &asked, nil)
}

// DoEach decides several requests, for one key or many, each by itself, as [Limiter.Do] does, without
// MaxWait. Some can be answered in this process; the others are sent together, and decided in their order
// for each bucket. Requests for one bucket under different limits go out in different calls. Requests with an
// ID, and with [Config].Block all of them, are round trips of their own, and the others are decided behind them.
//
// Each request that is sent counts as a waiting caller: if [Config].MaxWaiting has no room for
// all of them, none is sent. The error says of which requests no decision is known: it joins an [*IndexError] of
// each. The other decisions hold, and their tokens are taken. If a request is not valid, none is sent, and the
// decisions are nil. So they are if there are no requests.
func (l *Limiter) DoEach(ctx context.Context, requests ...Request) ([]Decision, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	if err := alone(requests); err != nil {
		return nil, err
	}
	whole, own := l.newClaim(requests...), l.ready(ctx)
	all, each := make([]claim, len(requests)), make([]*claim, len(requests))
	for i := range all {
		if err := l.complete(whole, i, own, nil); err != nil {
			return nil, &IndexError{i, err}
		}
		all[i] = claim{Requests: whole.Requests[i : i+1], Decisions: whole.Decisions[i : i+1]}
		if whole.Rules != nil {
			all[i].Rules = whole.Rules[i : i+1]
		}
		each[i] = &all[i]
	}
	l.decide(ctx, each, nil)
	var errs []error
	for i := range all {
		if err := all[i].Err; err != nil {
			errs = append(errs, &IndexError{i, err})
		}
	}
	return whole.Decisions, errors.Join(errs...)
}

// maxGroup is how many requests a group may have: its call holds all their rows.
const maxGroup = 1000

// Group is the answer to [Limiter.DoAll].
type Group struct {
	// Allowed says that all requests were granted. Else nothing was taken, for any of them.
	Allowed bool

	// RetryAfter is the time until all of them could be granted if nobody else took any: the
	// longest of the Decisions. FromMemory it is a lower bound: a bucket of which nothing is known
	// may need longer.
	RetryAfter time.Duration

	// Delay is how long after the Decisions the tokens could be used, if DoAll has waited for them: the longest of
	// the Decisions, each of which has the Delay of its own bucket.
	Delay time.Duration

	// Denied is the Decision with that RetryAfter, which names the Limiter, Key and Limit.
	// FromMemory it is the longest that is known. If the group is Allowed, it is zero.
	Denied Decision

	// Decisions about the requests, in their order. If the group is denied, Granted is zero, and
	// Allowed says that this bucket had the tokens.
	//
	// If the group is denied FromMemory, only buckets that lack tokens are known. A bucket of which
	// nothing is known is Allowed with a Remaining of zero; one that had the tokens has some left.
	Decisions []Decision
}

// DoAll takes for several requests, for different buckets, all or nothing: per user and per
// organisation and for all together, or ten per second and a thousand per day. It is one round
// trip.
//
// A [Request] needs a Key and Tokens, at least 1: a group does not look. Limiter and Limit are the Limiter's own if
// they are left out. A bucket is a Limiter and a Key, and has one limit at a time: two limits on one key need two
// Limiter names. Durability is the stronger of the request's and the Limiter's.
//
// A denial is no error. After a [*RequestError] or [*LimitError] nothing is taken. If the strategy
// does not know groups, the error satisfies errors.Is(err, [errors.ErrUnsupported]).
//
// If a request has a MaxWait, DoAll waits for the tokens, as [Limiter.WaitN] does, for the shortest MaxWait of the
// requests at most: see [Request].MaxWait. The error is nil if, and only if, they may be used; [ErrWaitTooLong] comes
// with a Group whose RetryAfter says how long it would have been.
//
// Groups do not spend leases (see [Config.Leases]): those of their buckets that this process has
// are given back first.
func (l *Limiter) DoAll(ctx context.Context, requests ...Request) (Group, error) {
	longest, err := shortestWait(requests)
	if err != nil {
		return Group{}, err
	}
	if longest > 0 {
		return l.waitForAll(ctx, requests, longest)
	}
	group, err := l.completeGroup(requests, l.ready(ctx))
	if err != nil {
		return Group{}, err
	}
	return l.answerGroup(l.decideGroup(ctx, group, false, false))
}

// answerGroup is what DoAll returns of a group that was decided. An error may come with decisions that hold.
func (l *Limiter) answerGroup(answer *claim, err error) (Group, error) {
	if answer.Err != nil {
		return Group{}, err
	}
	g := Group{Allowed: answer.Decisions[0].Granted > 0, Decisions: answer.Decisions, Delay: queue.Delay(answer.Decisions)}
	for _, d := range g.Decisions {
		if !g.Allowed && (g.Denied.Key == "" || d.RetryAfter > g.RetryAfter || g.Denied.Allowed && !d.Allowed) {
			g.Denied = d
		}
		g.RetryAfter = max(g.RetryAfter, d.RetryAfter)
	}
	return g, err
}

// completeGroup completes the requests of a group, and checks them.
func (l *Limiter) completeGroup(requests []Request, own Limit) (*claim, error) {
	if err := l.strategy.Check(&rate.Request{Limit: l.Limit(), Tokens: 1, Unit: 1, Group: 1}); err != nil {
		return nil, err
	}
	if l.blocks() {
		return nil, errBlocksGroup
	}
	if len(requests) == 0 || len(requests) > maxGroup {
		return nil, fmt.Errorf("pglimit: DoAll of %d requests: a group has 1 to %d", len(requests), maxGroup)
	}
	group, seen := l.newClaim(requests...), make(map[rate.Bucket]*rate.Request, len(requests))
	for i := range group.Requests {
		r := &group.Requests[i]
		err := l.completeMember(group, i, own)
		if before := seen[r.Bucket()]; err == nil && before != nil {
			err = twiceError(before, r)
		}
		if err != nil {
			return nil, &IndexError{i, err}
		}
		seen[r.Bucket()] = r
	}
	return group, nil
}

func (l *Limiter) completeMember(group *claim, i int, own Limit) error {
	r := &group.Requests[i]
	switch {
	case r.Tokens == 0:
		return &RequestError{Field: "Tokens", Why: "is 0: it must be at least 1, because a group does not look (to look without taking, use Peek or DoEach)"}
	case r.Unit != 0 && r.Unit != r.Tokens:
		return &RequestError{Field: "Unit", Why: fmt.Sprintf("is %d: leave it out, a group is all or nothing (Tokens is %d)", r.Unit, r.Tokens)}
	case r.Ahead != 0:
		return &RequestError{Field: "Ahead", Why: fmt.Sprintf("is %v: a group takes what is there, or waits with MaxWait", r.Ahead)}
	case r.ID != "":
		return &RequestError{Field: "ID", Why: fmt.Sprintf("is %q: a request of a group cannot have one", r.ID)}
	}
	if err := checkName(r.Limiter); err != nil {
		return err
	}
	r.Unit, r.Group = r.Tokens, 1
	rule, err := l.applyRule(group, i)
	if err != nil {
		return err
	}
	return l.finish(r, rule, own)
}

// twiceError says of two requests for one bucket what to do instead.
func twiceError(before, r *rate.Request) error {
	if before.Limit == r.Limit {
		return &RequestError{Field: "Key", Why: fmt.Sprintf("%q is asked for twice: ask once, for the Tokens of both (%d and %d)", r.Key, before.Tokens, r.Tokens)}
	}
	return &RequestError{Field: "Limit", Why: fmt.Sprintf("is %v and %v for the same key %q: a bucket has one limit; give one of them another Request.Limiter, such as %q", before.Limit, r.Limit, r.Key, r.Limiter+"/day")}
}
