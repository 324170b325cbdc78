package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/pglimit/internal/newkeys"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ahead is how long ahead of their time tokens may be taken, by a request's limit and rule.
type ahead func(Limit, *LimitRule) (time.Duration, error)

// complete fills in what a request of the claim leaves out, and checks it. own is the Limiter's own limit. A nil ahead
// leaves it to the request.
func (l *Limiter) complete(c *claim, i int, own Limit, ahead ahead) (err error) {
	r := &c.Requests[i]
	if err := l.checkFields(r); err != nil {
		return err
	}
	rule, err := l.applyRule(c, i)
	if err != nil {
		return err
	}
	if ahead != nil {
		r.Limit = cmp.Or(r.Limit, own)
		if r.Ahead, err = ahead(r.Limit, rule); err != nil {
			return err
		}
	}
	return l.finish(r, rule, own)
}

// ready waits until the rules are known, within the time limit, and returns the Limiter's own limit.
func (l *Limiter) ready(ctx context.Context) Limit {
	if !l.rules.Ready() {
		timeout := l.timeout
		if timeout == NoTimeout {
			timeout = defaultTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if l.waiting.Enter(1) == nil {
			_ = l.config.Limits.Await(ctx) // else the stage says so
			l.waiting.Leave(1)
		}
	}
	return l.Limit()
}

// applyRule notes the rule that holds for a request of the claim, and takes its limit. A rule that cannot be read or
// kept is a [*RuleError].
func (l *Limiter) applyRule(c *claim, i int) (*LimitRule, error) {
	r := &c.Requests[i]
	if r.Limiter == "" {
		r.Limiter = l.config.Name
	}
	if c.Rules == nil {
		return nil, nil
	}
	c.Rules[i] = l.rules.Apply(r)
	return c.Rules[i], l.rules.Fit(c.Rules[i])
}

// checkFields refuses what this Limiter cannot be asked.
func (l *Limiter) checkFields(r *rate.Request) error {
	if err := checkName(r.Limiter); err != nil {
		return err
	}
	if r.ID != "" && l.blocks() {
		return &RequestError{Field: "ID", Why: fmt.Sprintf("is %q: a Limiter with Config.Block takes none: leave it out, or ask a Limiter of another Name (without an ID, a request that is sent again is charged again)", r.ID)}
	}
	return nil
}

// finish completes a request under the rule, which may be nil.
func (l *Limiter) finish(r *rate.Request, rule *LimitRule, own Limit) error {
	foreign := r.Limit != Limit{} && !limits.Enforces(rule)
	if r.Limit == (Limit{}) {
		r.Limit = own
	}
	if r.Unit == 0 {
		r.Unit = max(r.Tokens, 1)
	}
	if r.Durability == Relaxed {
		r.Durability = l.config.Durability
	}
	if r.ID != "" {
		r.IDTTL = l.config.IDTTL
	}
	if l.blocks() {
		switch {
		case r.Ahead != 0:
			return errBlocksAhead
		case r.Unit < r.Tokens:
			return &RequestError{Field: "Unit", Why: fmt.Sprintf("is %d: with Config.Block it must be Tokens, %d, for all or nothing", r.Unit, r.Tokens)}
		}
		r.Block = &l.config.Block
	}
	if err := validate(r, rule); err != nil {
		return err
	}
	if limits.Enforces(rule) {
		r.Tokens = min(r.Tokens, r.Limit.Burst)
	}
	if foreign || !r.Plain() {
		if err := l.strategy.Check(r); err != nil {
			return err
		}
	}
	r.Tokens -= r.Tokens % r.Unit // nobody gets a part of a unit: the parts of several requests must not add up to one
	return nil
}

// validate is r.Validate, but a rule that has no limit, or is not known yet, may grant more than the burst.
func validate(r *rate.Request, rule *LimitRule) error {
	if rule != nil && !limits.Enforces(rule) && max(r.Tokens, r.Unit) > r.Limit.Burst { // else no copy is needed
		fits := *r
		fits.Tokens, fits.Unit = min(r.Tokens, r.Limit.Burst), min(r.Unit, r.Limit.Burst)
		r = &fits
	}
	return r.Validate()
}

// What a Limiter with Config.Block cannot do, and what to do instead.
var (
	errBlocksAhead  = fmt.Errorf("pglimit: a Limiter with Config.Block grants no tokens ahead of their time: use Allow, and try again after Decision.RetryAfter: %w", errors.ErrUnsupported)
	errBlocksGroup  = fmt.Errorf("pglimit: a Limiter with Config.Block takes no groups: use Allow, and then, if it is allowed, DoAll of another Limiter for the other buckets (Refund if these deny): %w", errors.ErrUnsupported)
	errBlocksSettle = fmt.Errorf("pglimit: a Limiter with Config.Block charges no more than it granted: ask for the most that the request may cost, and Settle less: %w", errors.ErrUnsupported)
)

func tooFew(n int64) error {
	return &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: it must be at least 1 (to look without taking, use Peek)", n)}
}

// request for n tokens of the key under the Limiter's own limit, all or nothing.
func (l *Limiter) request(key string, n int64) rate.Request {
	return rate.Request{Limiter: l.config.Name, Key: key, Limit: l.Limit(), Tokens: n, Unit: n, Durability: l.config.Durability}
}

// checkName refuses a name whose buckets are those of another limiter's new keys, or of its rules that are only
// observed.
func checkName(limiter string) error {
	for _, suffix := range []string{newkeys.Suffix, limits.ObservedSuffix} {
		if of, is := strings.CutSuffix(limiter, suffix); is {
			return &RequestError{Field: "Limiter", Why: fmt.Sprintf("is %q: that names buckets beside those of limiter %q, so no limiter may end in %q", limiter, of, suffix)}
		}
	}
	return nil
}

func (l *Limiter) canReserve() error {
	if err := l.strategy.Check(&rate.Request{Limit: l.Limit(), Ahead: 1}); err != nil {
		return err
	}
	if l.blocks() {
		return errBlocksAhead
	}
	return nil
}
