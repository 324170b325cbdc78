package pglimit

import (
	"fmt"
)

// checkDecisions checks that the decisions can answer the requests. The stages rely on it: they
// would hand out tokens that nobody asked for.
func checkDecisions(strategy Strategy, requests []Request, decisions []Decision) error {
	if len(decisions) != len(requests) {
		return fmt.Errorf("pglimit: the strategy %s made %d decisions of %d requests", strategy.Name(), len(decisions), len(requests))
	}
	for i := range decisions {
		if err := checkDecision(strategy, &requests[i], &decisions[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkDecision(strategy Strategy, r *Request, d *Decision) error {
	if fault := fault(d, r); fault != "" {
		return fmt.Errorf("pglimit: the strategy %s made a decision that cannot be of %d tokens in units of %d, %s: %+v",
			strategy.Name(), r.Tokens, r.Unit, fault, *d)
	}
	return nil
}

// checkLease compares what a strategy lends with what it was asked for: Leases spends it without
// asking anybody.
func checkLease(strategy Strategy, r *LeaseRequest, l *Lease) error {
	if l.Tokens < 0 || l.Tokens > min(r.Tokens, r.Limit.Burst) || l.Tokens > 0 && !l.Until.After(l.At) {
		return fmt.Errorf("pglimit: the strategy %s made a lease that cannot be of %d tokens and a burst of %d: %+v", strategy.Name(), r.Tokens, r.Limit.Burst, *l)
	}
	return nil
}

// fault says what is impossible in a decision about the request, or is empty.
func fault(d *Decision, r *Request) string {
	switch {
	case d.Granted < 0:
		return "Granted is negative"
	case d.Granted > r.Tokens:
		return "Granted is more than was asked for"
	case r.Unit > 1 && d.Granted%r.Unit != 0:
		return "Granted is no multiple of the unit"
	case r.Tokens > 0 && d.Allowed != (d.Granted > 0):
		return "Allowed does not fit Granted"
	case d.Delay < 0:
		return "Delay is negative"
	case d.Delay > r.Ahead || d.Delay > 0 && d.Granted == 0:
		return "Delay is not what was asked for"
	case d.Allowed && d.Contended:
		return "Allowed does not fit Contended"
	case d.Blocked != (d.BlockedFor > 0) || d.Allowed && d.Blocked:
		return "Blocked does not fit BlockedFor or Allowed"
	case d.Remaining < 0:
		return "Remaining is negative"
	case d.RetryAfter < 0:
		return "RetryAfter is negative"
	case d.ResetAfter < 0:
		return "ResetAfter is negative"
	}
	return ""
}
