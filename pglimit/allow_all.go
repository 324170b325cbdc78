package pglimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/local"
)

// maxGroup is how many requests a group may have: its call holds all their rows.
const maxGroup = 1000

// Group is the answer to [Limiter.AllowAll].
type Group struct {
	// Allowed says that all requests were granted. Else nothing was taken, for any of them.
	Allowed bool

	// RetryAfter is the time until all of them could be granted if nobody else took any: the
	// longest of the Decisions. FromMemory it is a lower bound: a bucket of which nothing is known
	// may need longer.
	RetryAfter time.Duration

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

// AllowAll takes for several requests, for different buckets, all or nothing: per user and per
// organisation and for all together, or ten per second and a thousand per day. It is one round
// trip.
//
// A [Request] needs a Key. Limiter and Limit are the Limiter's own if they are left out, and Tokens
// is one. A bucket is a Limiter and a Key, and has one limit at a time: two limits on one key need
// two Limiter names. Durability is the stronger of the request's and the Limiter's.
//
// A denial is no error. After a [*RequestError] or [*LimitError] nothing is taken. The strategy
// must be a [GroupTaker]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
//
// Groups do not spend leases (see [Config.Leases]): those of their buckets that this process has
// are given back first.
func (l *Limiter) AllowAll(ctx context.Context, requests ...Request) (Group, error) {
	if l.blocks() {
		return Group{}, fmt.Errorf("pglimit: a Limiter with Config.Block decides requests one by one: ask another Limiter: %w", errors.ErrUnsupported)
	}
	group, err := l.completeGroup(requests)
	if err != nil {
		return Group{}, err
	}
	var decisions []Decision
	known := false
	if l.leases == nil { // else the tokens may be those of a lease that is given back
		decisions, known = l.knownGroup(group)
	}
	if !known {
		decisions, err = l.askGroup(ctx, group)
	}
	return l.tellGroup(ctx, group, decisions, err)
}

// completeGroup completes the requests with the Limiter's fields, and checks them.
func (l *Limiter) completeGroup(requests []Request) ([]Request, error) {
	if len(requests) == 0 || len(requests) > maxGroup {
		return nil, fmt.Errorf("pglimit: AllowAll of %d requests: a group has 1 to %d", len(requests), maxGroup)
	}
	group, own := slices.Clone(requests), l.Limit()
	for i := range group {
		r := &group[i]
		if err := l.completeMember(r, own); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
		same := func(before Request) bool { return before.Key == r.Key && before.Limiter == r.Limiter }
		if before := slices.IndexFunc(group[:i], same); before >= 0 {
			return nil, fmt.Errorf("request %d: %w", i, twiceError(&group[before], r))
		}
	}
	return group, nil
}

func (l *Limiter) completeMember(r *Request, own Limit) error {
	switch {
	case r.Unit != 0 && r.Unit != r.Tokens:
		return &RequestError{Field: "Unit", Why: fmt.Sprintf("is %d: leave it out, a group is all or nothing (Tokens is %d, and 0 means 1 here: to look without taking, use Peek or Take)", r.Unit, r.Tokens)}
	case r.Ahead != 0:
		return &RequestError{Field: "Ahead", Why: fmt.Sprintf("is %v: a group takes only tokens that are there", r.Ahead)}
	case r.ID != "":
		return &RequestError{Field: "ID", Why: fmt.Sprintf("is %q: a request of a group cannot have one", r.ID)}
	}
	if r.Tokens == 0 {
		r.Tokens = 1
	}
	r.Unit, r.Group = r.Tokens, 1
	return l.complete(r, own)
}

// twiceError says of two requests for one bucket what to do instead.
func twiceError(before, r *Request) error {
	if before.Limit == r.Limit {
		return &RequestError{Field: "Key", Why: fmt.Sprintf("%q is asked for twice: ask once, for the Tokens of both (%d and %d)", r.Key, before.Tokens, r.Tokens)}
	}
	return &RequestError{Field: "Limit", Why: fmt.Sprintf("is %v and %v for the same key %q: a bucket has one limit; give one of them another Request.Limiter, such as %q", before.Limit, r.Limit, r.Key, r.Limiter+"/day")}
}

// knownGroup returns the decisions if one of the buckets is known to lack tokens. The others may
// have them.
func (l *Limiter) knownGroup(group []Request) ([]Decision, bool) {
	var decisions []Decision
	for i := range group {
		d, known := l.denials.Recall(&group[i])
		if !known {
			continue
		}
		if decisions == nil {
			decisions = make([]Decision, len(group))
			for j := range decisions {
				decisions[j] = Decision{Allowed: true, At: d.At, Source: FromMemory}
			}
		}
		decisions[i] = d
	}
	return decisions, decisions != nil
}

// askGroup asks Postgres about a group.
func (l *Limiter) askGroup(ctx context.Context, group []Request) (decisions []Decision, err error) {
	err = l.asCaller(ctx, 1, func(ctx context.Context) (err error) {
		for i := range group {
			if err := l.leases.Drop(ctx, group[i].Bucket()); err != nil {
				return err
			}
		}
		decisions, err = l.takeGroup(ctx, group)
		return err
	})
	return decisions, err
}

// takeGroup asks Postgres, together with the groups of other callers or alone.
func (l *Limiter) takeGroup(ctx context.Context, group []Request) ([]Decision, error) {
	if l.groups != nil {
		return l.groups.Decide(ctx, group)
	}
	decisions, err := l.sendGroups(ctx, [][]Request{group})
	if err != nil {
		return nil, err
	}
	return decisions[0], nil
}

// sendGroups makes the round trip that decides. It checks the decisions, and remembers which
// buckets lack tokens. AllowAll has checked that the strategy is a GroupTaker.
func (l *Limiter) sendGroups(ctx context.Context, groups [][]Request) (decisions [][]Decision, err error) {
	asked, requests := l.denials.Now(), 0
	for i := range groups {
		requests += len(groups[i])
	}
	err = l.call(ctx, "take_groups", requests, func(ctx context.Context) error {
		all, err := l.strategy.Take(ctx, l.session, numbered(groups))
		if err == nil && len(all) != requests {
			err = fmt.Errorf("pglimit: the strategy %s made %d decisions of %d requests", l.strategy.Name(), len(all), requests)
		}
		if err == nil {
			decisions = make([][]Decision, len(groups))
			for i := range groups {
				decisions[i], all = all[:len(groups[i])], all[len(groups[i]):]
			}
			err = checkGroups(l.strategy, groups, decisions)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i := range groups {
		for j := range decisions[i] {
			decisions[i][j].Source = FromDatabase
		}
		l.denials.Learn(groups[i], decisions[i], asked)
	}
	return decisions, nil
}

// numbered are the requests of all groups.
func numbered(groups [][]Request) (requests []Request) {
	for i, group := range groups {
		for _, r := range group {
			r.Group = i + 1
			requests = append(requests, r)
		}
	}
	return requests
}

// checkGroups is checkDecisions for groups.
func checkGroups(strategy Strategy, groups [][]Request, decisions [][]Decision) error {
	if len(decisions) != len(groups) {
		return fmt.Errorf("pglimit: the strategy %s decided %d groups of %d", strategy.Name(), len(decisions), len(groups))
	}
	for i := range groups {
		if len(decisions[i]) != len(groups[i]) {
			return fmt.Errorf("pglimit: the strategy %s made %d decisions of a group of %d requests", strategy.Name(), len(decisions[i]), len(groups[i]))
		}
		for j, d := range decisions[i] {
			if d.Granted > 0 != (decisions[i][0].Granted > 0) {
				return fmt.Errorf("pglimit: the strategy %s granted a part of a group: %+v", strategy.Name(), decisions[i])
			}
			d.Allowed = d.Granted > 0 // what else it says of a request that is denied
			if err := checkDecision(strategy, &groups[i][j], &d); err != nil {
				return err
			}
		}
	}
	return nil
}

// tellGroup tells the caller the decisions, or what OnError makes of the error.
func (l *Limiter) tellGroup(ctx context.Context, group []Request, decisions []Decision, err error) (Group, error) {
	if err != nil {
		if decisions, err = l.fallbackGroup(ctx, group, err); err != nil {
			l.tellOnDecision(ctx, group, make([]Decision, len(group)), err)
			return Group{}, err
		}
	}
	g := Group{Allowed: decisions[0].Granted > 0, Decisions: decisions}
	for i := range decisions {
		d, r := &decisions[i], &group[i]
		d.Limiter, d.Key, d.Limit = r.Limiter, r.Key, r.Limit
		if !g.Allowed && (g.Denied.Key == "" || d.RetryAfter > g.RetryAfter || g.Denied.Allowed && !d.Allowed) {
			g.Denied = *d
		}
		g.RetryAfter = max(g.RetryAfter, d.RetryAfter)
	}
	l.counters.tell(&Decision{Allowed: g.Allowed, Source: decisions[0].Source})
	l.tellOnDecision(ctx, group, decisions, nil)
	return g, nil
}

// tellOnDecision tells it each request of a group.
func (l *Limiter) tellOnDecision(ctx context.Context, group []Request, decisions []Decision, err error) {
	if l.config.OnDecision == nil {
		return
	}
	for i := range group {
		l.config.OnDecision(ctx, group[i], decisions[i], err)
	}
}

// fallbackGroup is fallback for a group. If OnError does not grant all, it has granted none.
func (l *Limiter) fallbackGroup(ctx context.Context, group []Request, err error) ([]Decision, error) {
	final, err := l.failed(ctx, group[0].Key, err)
	if final {
		return nil, err
	}
	ctx = context.WithValue(ctx, groupKey{}, &failedGroup{requests: group})
	decisions, all := make([]Decision, len(group)), true
	for i := range group {
		d, err := l.config.OnError(ctx, group[i], err)
		if err != nil {
			return nil, err
		}
		d.Source = FromFallback
		decisions[i], all = d, all && d.Allowed
	}
	for i := range decisions {
		decisions[i].Granted = 0
		if all {
			decisions[i].Granted = group[i].Tokens
		}
	}
	return decisions, nil
}

// failedGroup is in the context that OnError gets for a group: FailLocal decides all of it when it
// is asked for the first request.
type failedGroup struct {
	requests  []Request
	decisions []Decision
}

type groupKey struct{}

// groupDecision decides the request as one of its group, if it is one of a group.
func groupDecision(ctx context.Context, r *Request, buckets *local.Buckets) (d Decision, of bool) {
	g, of := ctx.Value(groupKey{}).(*failedGroup)
	if !of {
		return Decision{}, false
	}
	for i := range g.requests {
		if g.requests[i] == *r {
			if g.decisions == nil {
				g.decisions = buckets.TakeAll(g.requests, time.Now())
			}
			return g.decisions[i], true
		}
	}
	return Decision{}, false
}
