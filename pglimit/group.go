package pglimit

import (
	"context"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
)

// decideGroup is decide for a group, or decideInTurn if it waits. What a rule grants is not taken from its bucket.
func (l *Limiter) decideGroup(ctx context.Context, group *claim, waits, again bool) (*claim, error) {
	decide := func(c *claim) error {
		if waits {
			return l.decideInTurn(ctx, c, again)
		}
		l.decide(ctx, []*claim{c}, nil)
		return c.Err
	}
	var asked []int
	for i := range group.Requests {
		if !limits.Frees(group.Rule(i)) {
			asked = append(asked, i)
		}
	}
	if len(asked) == len(group.Requests) {
		return group, decide(group)
	}
	var err error
	granted := true
	if len(asked) > 0 {
		rest := &claim{Decisions: make([]Decision, len(asked))}
		for _, i := range asked {
			rest.Requests, rest.Rules = append(rest.Requests, group.Requests[i]), append(rest.Rules, group.Rules[i])
		}
		err = decide(rest)
		if rest.Err != nil {
			return rest, err
		}
		for k, i := range asked {
			group.Decisions[i] = rest.Decisions[k]
			granted = granted && rest.Decisions[k].Granted > 0
		}
	}
	for i := range group.Requests {
		r, d, rule := &group.Requests[i], &group.Decisions[i], group.Rule(i)
		if d.Limiter != "" {
			continue
		}
		*d = l.rules.Grant(r)
		if !granted {
			d.Granted = 0
		}
		if len(asked) > 0 {
			d.Limiter, d.Key, d.Limit, d.Rule = r.Limiter, r.Key, r.Limit, rule
			l.counters.ruled[rule.Action].Add(1)
			if l.config.OnDecision != nil {
				l.config.OnDecision(ctx, told(r), *d, nil)
			}
		}
	}
	if len(asked) == 0 {
		l.tell(ctx, group)
	}
	return group, err
}
