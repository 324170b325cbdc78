package pglimit

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// complete fills in what the request leaves out, and checks it. own is the Limiter's own limit.
func (l *Limiter) complete(r *Request, own Limit) error {
	if err := l.checkFields(r); err != nil {
		return err
	}
	l.applyRule(r)
	return l.finish(r, own)
}

// completeAhead is complete for a request that takes tokens ahead of their time: by as much as its limit and rule allow.
func (l *Limiter) completeAhead(r *Request, own Limit, ahead func(Limit, *LimitRule) (time.Duration, error)) (err error) {
	if err = l.checkFields(r); err != nil {
		return err
	}
	l.applyRule(r)
	r.Limit = cmp.Or(r.Limit, own)
	if r.Ahead, err = ahead(r.Limit, r.Rule); err != nil {
		return err
	}
	return l.finish(r, r.Limit)
}

// checkFields refuses what only a Limiter fills in.
func (l *Limiter) checkFields(r *Request) error {
	if err := checkName(r.Limiter); err != nil {
		return err
	}
	switch {
	case r.Group != 0:
		return &RequestError{Field: "Group", Why: fmt.Sprintf("is %d: leave it out, and use DoAll", r.Group)}
	case r.Block != nil:
		return &RequestError{Field: "Block", Why: "is set: leave it out, and set Config.Block"}
	case r.MaxWait != 0:
		return &RequestError{Field: "MaxWait", Why: fmt.Sprintf("is %v: only a request that is alone can wait, see Do", r.MaxWait)}
	case r.ID != "" && l.blocks():
		return &RequestError{Field: "ID", Why: fmt.Sprintf("is %q: a Limiter with Config.Block takes none: leave it out, or ask a Limiter of another Name (without an ID, a request that is sent again is charged again)", r.ID)}
	}
	return nil
}

// finish completes the request of a caller or a group.
func (l *Limiter) finish(r *Request, own Limit) error {
	if r.Limiter == "" {
		r.Limiter = l.config.Name
	}
	if r.Rule != nil && r.Rule.Unreadable != "" {
		return l.config.Limits.fails(r.Rule, errors.New(r.Rule.Unreadable))
	}
	foreign := r.Limit != Limit{}
	if !foreign {
		r.Limit = own
	}
	if r.Unit == 0 {
		r.Unit = max(r.Tokens, 1)
	}
	if r.Durability == Relaxed {
		r.Durability = l.config.Durability
	}
	r.Impatient = false // the stages decide that
	if r.ID != "" && r.IDTTL == 0 {
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
	if err := validate(r); err != nil {
		return err
	}
	if r.Rule != nil && r.Rule != notRead && r.Rule.Action == Enforce {
		r.Tokens = min(r.Tokens, r.Limit.Burst)
		if err := l.rules.Load().unfit(l.strategy, r.Rule); err != nil {
			return l.config.Limits.fails(r.Rule, err)
		}
		foreign = false
	}
	if foreign || !r.Plain() {
		unusual := *r // so that r need not be on the heap
		if err := l.strategy.Check(&unusual); err != nil {
			return err
		}
	}
	r.Tokens -= r.Tokens % r.Unit // nobody gets a part of a unit: the parts of several requests must not add up to one
	return nil
}

// validate is r.Validate, but a rule that has no limit, or is not known yet, may grant more than the burst.
func validate(r *Request) error {
	if r.Rule != nil && (r.Rule == notRead || r.Rule.Action != Enforce) && max(r.Tokens, r.Unit) > r.Limit.Burst { // else no copy is needed
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
func (l *Limiter) request(key string, n int64) Request {
	return Request{Limiter: l.config.Name, Key: key, Limit: l.Limit(), Tokens: n, Unit: n, Durability: l.config.Durability}
}

func (l *Limiter) canReserve() error {
	if err := l.strategy.Check(&Request{Limit: l.Limit(), Ahead: 1}); err != nil {
		return err
	}
	if l.blocks() {
		return errBlocksAhead
	}
	return nil
}
