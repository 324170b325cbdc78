package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
)

// shortestWait is the shortest MaxWait of the requests that have one; 0: none has.
func shortestWait(requests []Request) (shortest time.Duration, err error) {
	for i := range requests {
		switch longest := requests[i].MaxWait; {
		case longest < 0:
			return 0, &IndexError{i, negativeWait(longest)}
		case longest > 0 && (shortest == 0 || longest < shortest):
			shortest = longest
		}
	}
	return shortest, nil
}

func negativeWait(longest time.Duration) error {
	return &RequestError{Field: "MaxWait", Why: fmt.Sprintf("is %v: a wait must be positive (to take without waiting, leave it out)", longest)}
}

// waitForAll is DoAll for requests that wait for so long at most.
//
// Each bucket reserves what the group asks of it, in one round trip, and the group waits until the last is due. A
// calendar window reserves nothing: it has the tokens, and the group is due before it ends, or nothing is taken
// anywhere. Then the group asks again after RetryAfter, if that is not too long. (If this process's clock is faster than
// Postgres's, that is too early, and it is told how much.)
func (l *Limiter) waitForAll(ctx context.Context, requests []Request, longest time.Duration) (Group, error) {
	if err := l.mayWait(); err != nil {
		return Group{}, err
	}
	if l.config.MaxWait > 0 {
		longest = min(longest, l.config.MaxWait)
	}
	closed := l.queue.Enter(1)
	if closed == nil {
		defer l.queue.Leave(1)
	}
	for began, again := time.Now(), false; ; again = true {
		group, err := l.completeGroup(requests, l.ready(ctx))
		if err != nil {
			return Group{}, err
		}
		if closed != nil {
			group.Fail(closed)
			l.tell(ctx, group)
			return Group{}, group.Err
		}
		left, err := l.reserveWithin(ctx, group, longest, time.Since(began))
		if err != nil {
			return Group{}, err
		}
		g, err := l.answerGroup(l.decideGroup(ctx, group, true, again))
		if errors.Is(err, errPaused) {
			continue
		}
		if deadline, ends := ctx.Deadline(); ends && time.Until(deadline) < bucket.AtMost(g.RetryAfter) { // the round trip took its time
			left = 0
		}
		if !errors.Is(err, ErrWaitTooLong) || !g.Denied.Source.HasLimit() || g.RetryAfter > left || g.RetryAfter == 0 {
			return g, err
		}
		if err := l.queue.Sleep(ctx, g.RetryAfter); err != nil {
			return Group{}, err
		}
	}
}

// reserveWithin lets the requests reserve what comes back in the time that is left of the longest wait, or of a shorter
// one by a rule or the deadline of ctx. It returns that time.
func (l *Limiter) reserveWithin(ctx context.Context, group *claim, longest, passed time.Duration) (left time.Duration, err error) {
	for i := range group.Requests {
		if rule := group.Rule(i); rule != nil && rule.MaxWait > 0 {
			longest = min(longest, rule.MaxWait)
		}
	}
	for i := range group.Requests {
		r := &group.Requests[i]
		ahead, err := l.longestWait(ctx, r.Limit, max(1, longest-passed))
		if err != nil {
			return 0, err
		}
		left = max(left, ahead)
		if r.Limit.Calendar != "" {
			continue
		}
		r.Ahead = ahead
		if err := l.strategy.Check(r); err != nil {
			return 0, err
		}
	}
	return left, nil
}
