package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/claims"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ErrNotCharged: a Settle charged less than the request cost, or nothing more than was granted,
// because the bucket owes as much as it may. Granted of the Decision that comes with it says how
// much was charged in all.
var ErrNotCharged = errors.New("pglimit: not all was charged")

// Refund gives back n of the tokens that the decision granted, because they were not used: for
// limits that count only failed logins, or no requests that ended in an error of the server's.
//
// The bucket gets no more than it would have had: n tokens minus what was refilled since they were due, or reserved
// by others behind them. (Tokens out of a lease are charged when that ends: until then the bucket may have nothing to
// give back from.) Refund each token once, through a Limiter with the strategy of the one that granted it, which must
// be a [GiveBacker]. Do not send the request again if it has an ID: it would be granted without a charge. If the
// decision granted fewer tokens, or none, or was made FromFallback, the error is a [*RequestError]. What was granted
// FromRule or FromNewKeys was not charged, and is neither given back nor settled: that is no error.
//
// The tokens go back also if ctx ends, or has ended, because the client of the request has gone: the call goes
// on for as long as [Config].Timeout allows, and with NoTimeout for a second.
//
// Do not refund what was granted in a transaction (InTx) that was rolled back: nothing was taken, and the
// bucket would get back tokens that others used. If the bucket has taken under another limit since
// the decision, it gets nothing back; if under the first limit again after that, perhaps tokens that had flowed
// back already, at the faster of both rates.
func (l *Limiter) Refund(ctx context.Context, decision Decision, n int64) error {
	r, err := l.granted(&decision)
	if err != nil {
		return err
	}
	if n < 1 || n > decision.Granted {
		return &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: the decision granted %d, of which 1 to %[2]d can be given back", n, decision.Granted)}
	}
	if decision.Source.IsFree() {
		return nil
	}
	return l.refund(ctx, refundsOf(r, decision, n))
}

// Settle charges what a request really cost, after it was granted an estimate: of the tokens that
// the decision granted, those beyond actual are given back, as by [Limiter.Refund]. If actual is
// more, the rest is charged too, also if it is not there: the bucket then owes it, and grants
// nothing until it is paid. Granted of the returned Decision says how much was charged in all.
//
// others are further decisions, of the same group for instance, whose requests cost actual too: all are
// settled in one round trip (or two, if some are given back and others charged). The returned Decision is
// the one that charged least, by default the first.
//
// A bucket owes one more burst at most. What is beyond that is not charged: the Decision comes with
// [ErrNotCharged]. The rest is the caller's loss, unless it takes it with WaitN or AllowN later, in
// parts of a burst at most. (Do not Settle again.)
//
// Settle a decision once, and do not Refund it too: the returned one has no Limiter and Key any more, so that neither
// can be done by mistake. As Refund, it goes on if ctx ends. To charge more, the strategy must know Ahead. OnError is
// not called.
func (l *Limiter) Settle(ctx context.Context, decision Decision, actual int64, others ...Decision) (Decision, error) {
	if actual < 0 {
		return Decision{}, &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: what a request cost must not be negative", actual)}
	}
	settled := append([]Decision{decision}, others...)
	var refunds []Refund
	charges := make(map[*Decision]*claim)
	var asked []*claim
	var all []*Decision
	for i := range settled {
		all = append(all, &settled[i])
		if beside := takenBeside(&settled[i]); beside != nil {
			all = append(all, beside)
		}
	}
	for _, d := range all {
		r, err := l.granted(d)
		if err != nil {
			return Decision{}, err
		}
		switch more := actual - d.Granted; {
		case d.Source.IsFree():
		case more < 0:
			refunds = append(refunds, refundOf(r, *d, -more))
		case more > 0 && l.blocks():
			return Decision{}, errBlocksSettle
		case more > 0:
			r.Unit, r.Ahead = 1, min(r.Limit.Window(), MaxWindow-r.Limit.Window())
			if r.Limit.Calendar != "" {
				r.Ahead = 0
			}
			if _, apart := l.strategy.Rule().(rate.Apart); apart { // behind the grant, whatever that costs
				r.Ahead = min(d.ResetAfter+r.Limit.Window(), MaxWindow-r.Limit.Window())
			}
			r.Tokens = min(more, int64((r.Limit.Window()+r.Ahead)/r.Limit.Token())) // at most what a full bucket has, and may owe
			if err := l.finish(&r, nil, r.Limit); err != nil {
				return Decision{}, err
			}
			l.newKeys.LetThrough(r.Bucket())
			charges[d] = claims.New(r)
			asked = append(asked, charges[d])
		}
	}
	if err := l.refund(ctx, refunds); err != nil {
		return Decision{}, err
	}
	ctx, cancel := l.outlasting(ctx)
	defer cancel()
	l.ask(ctx, asked, len(asked))
	least := 0
	for i := range settled {
		d := &settled[i]
		if c := charges[d]; c != nil {
			if c.Err != nil {
				return Decision{}, c.Err
			}
			c.Decisions[0].Granted += d.Granted
			limit := d.Limit
			*d = c.Decisions[0]
			d.Delay, d.Limit = 0, limit
		} else {
			d.Granted = actual
		}
		if d.Granted < settled[least].Granted {
			least = i
		}
	}
	answer := settled[least]
	answer.Allowed = true
	answer.Limiter, answer.Key = "", "" // it is settled: there is nothing to give back
	if answer.Granted < actual {
		key := append([]Decision{decision}, others...)[least].Key
		return answer, fmt.Errorf("%w: %d of %d tokens of %q, whose bucket owes a burst already, or is paused (take the rest later, with WaitN or AllowN)", ErrNotCharged, answer.Granted, actual, key)
	}
	return answer, nil
}

// granted returns the request that the decision granted.
func (l *Limiter) granted(d *Decision) (rate.Request, error) {
	r := l.request(d.Key, d.Granted)
	r.Limiter, r.Limit = d.Limiter, d.Limit
	switch {
	case d.Limiter == "":
		return r, &RequestError{Field: "Limiter", Why: "is empty: the decision must be one of a Limiter, and not settled"}
	case d.Granted < 1:
		return r, &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: the decision granted nothing", d.Granted)}
	case d.Source == FromFallback:
		return r, &RequestError{Field: "Source", Why: "is fallback: Postgres has not granted the tokens"}
	case d.Source.IsFree():
		return r, nil
	case d.At.Before(time.Unix(0, 0)) || d.Delay < 0:
		return r, &RequestError{Field: "At", Why: fmt.Sprintf("is %v, and Delay %v: keep the decision as it was granted", d.At, d.Delay)}
	}
	return r, checkLimit(l.strategy, r.Limit)
}

// refundOf n of the tokens that were granted, the last of them.
func refundOf(r rate.Request, d Decision, n int64) Refund {
	r.Tokens, r.Unit, r.Ahead = n, min(n, r.Limit.Burst), 0
	return Refund{Request: r, At: d.At, Delay: d.Delay}
}

// refundsOf is refundOf, and the same for what was taken under a rule that was only observed.
func refundsOf(r rate.Request, d Decision, n int64) []Refund {
	refunds := []Refund{refundOf(r, d, n)}
	if beside := takenBeside(&d); beside != nil {
		r.Limiter, r.Limit = beside.Limiter, beside.Limit
		refunds = append(refunds, refundOf(r, *beside, min(n, beside.Granted)))
	}
	return refunds
}

// refund makes the round trip within the time limit, also for a caller who has left.
func (l *Limiter) refund(ctx context.Context, refunds []Refund) error {
	if len(refunds) == 0 {
		return nil
	}
	ctx, cancel := l.outlasting(ctx)
	defer cancel()
	err := l.asCaller(ctx, 1, func(ctx context.Context) error { return l.giveBack(ctx, refunds) })
	if err != nil {
		return fmt.Errorf("pglimit: refund of %q: %w", refunds[0].Key, err)
	}
	for i := range refunds {
		if checkName(refunds[i].Limiter) == nil { // else it was only observed
			l.counters.refundedTokens.Add(refunds[i].Tokens)
		}
	}
	return nil
}

// takenBeside is what the decision took under the rule that was only observed; nil: nothing.
func takenBeside(d *Decision) *Decision {
	if o := d.Observed; o != nil && o.Granted > 0 && !o.Source.IsFree() {
		return o
	}
	return nil
}
