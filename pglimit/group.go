package pglimit

import "context"

// decideGroup is decide for a group. What a rule grants is not taken from its bucket.
func (l *Limiter) decideGroup(ctx context.Context, group []Request) *unit {
	all := &unit{Requests: group, Decisions: make([]Decision, len(group))}
	var asked []int
	for i := range group {
		if r := group[i].Rule; r == nil || r == notRead || r.Action == Enforce || r.Action == Deny {
			asked = append(asked, i)
		}
	}
	if len(asked) == len(group) {
		l.decide(ctx, []*unit{all}, nil)
		return all
	}
	granted := true
	if len(asked) > 0 {
		u := &unit{Decisions: make([]Decision, len(asked))}
		for _, i := range asked {
			u.Requests = append(u.Requests, group[i])
		}
		l.decide(ctx, []*unit{u}, nil)
		if u.Err != nil {
			return u
		}
		for k, i := range asked {
			all.Decisions[i] = u.Decisions[k]
			granted = granted && u.Decisions[k].Granted > 0
		}
	}
	for i := range group {
		r, d := &group[i], &all.Decisions[i]
		if d.Limiter != "" {
			continue
		}
		*d = l.config.Limits.grant(r)
		if !granted {
			d.Granted = 0
		}
		if len(asked) > 0 {
			d.Limiter, d.Key, d.Limit, d.Rule = r.Limiter, r.Key, r.Limit, r.Rule
			l.counters.ruled[r.Rule.Action].Add(1)
			if l.config.OnDecision != nil {
				l.config.OnDecision(ctx, *r, *d, nil)
			}
		}
	}
	if len(asked) == 0 {
		l.tell(ctx, all)
	}
	return all
}
