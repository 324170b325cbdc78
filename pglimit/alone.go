package pglimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// AllowOnce takes one token of the key's bucket, if it is there, for a request with that ID. If the
// request is sent again within [Config].IDTTL, because its outcome was not known, it gets its first
// decision and is not charged again, also if the limit has changed since (Decision.Limit is then the
// earlier one). A denial is not kept: the next try is decided anew.
//
// An ID belongs to a key; make one for each request, such as a UUID. It is at most [MaxIDBytes]
// long. If it was granted another number of tokens before, the error is a [*RequestError], and nothing is
// taken. A Reset forgives tokens and keeps IDs. What [Config.OnError] decides is not kept.
//
// The request costs a round trip: it is neither combined nor answered by a lease or the memory of
// denials. A lease of the key that this process has is given back first. The strategy must be an
// [OnceTaker]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
func (l *Limiter) AllowOnce(ctx context.Context, key, id string) (Decision, error) {
	return l.AllowOnceN(ctx, key, id, 1)
}

// AllowOnceN is AllowOnce for n tokens, all or none.
func (l *Limiter) AllowOnceN(ctx context.Context, key, id string, n int64) (Decision, error) {
	if id == "" {
		return Decision{}, &RequestError{Field: "ID", Why: "is empty: name the request (to take without an ID, use Allow)"}
	}
	if n < 1 {
		return Decision{}, tooFew(n)
	}
	return l.decide(ctx, Request{Key: key, Tokens: n, ID: id})
}

func (l *Limiter) blocks() bool { return l.config.Block != Block{} }

// alone says that the request goes out by itself: it has an ID, or its denial has to be counted.
func (l *Limiter) alone(r *Request) bool { return r.ID != "" || l.blocks() }

// checkAlone returns an error for a request that cannot go out by itself.
func (l *Limiter) checkAlone(r *Request) error {
	_, able := l.strategy.(OnceTaker)
	switch {
	case r.ID != "" && l.blocks():
		return &RequestError{Field: "ID", Why: fmt.Sprintf("is %q: a Limiter with Config.Block decides requests without one", r.ID)}
	case r.ID != "" && !able:
		return fmt.Errorf("pglimit: the strategy %s cannot charge a request with an ID once (token_bucket can): %w", l.strategy.Name(), errors.ErrUnsupported)
	case r.Unit < r.Tokens:
		return &RequestError{Field: "Unit", Why: fmt.Sprintf("is %d: with Config.Block it must be Tokens, %d, for all or nothing", r.Unit, r.Tokens)}
	}
	return nil
}

// sendAlone makes the round trip of a request that goes out by itself, after this process's lease
// of its bucket is given back: the request may need those tokens. It checks the decision, and
// remembers a denial.
func (l *Limiter) sendAlone(ctx context.Context, r Request) (d Decision, err error) {
	if err := l.leases.Drop(ctx, r.Bucket()); err != nil {
		return Decision{}, err
	}
	asked, requests, what := l.denials.Now(), []Request{r}, "take_once"
	if l.blocks() {
		what = "take_or_block"
	}
	err = l.call(ctx, what, 1, func(ctx context.Context) error {
		if l.blocks() {
			d, err = l.strategy.(Blocker).TakeOrBlock(ctx, l.session, r, l.config.Block)
		} else {
			d, err = l.strategy.(OnceTaker).TakeOnce(ctx, l.session, r, orDefault(l.config.IDTTL, defaultIDTTL))
		}
		if err == nil {
			err = checkDecisions(l.strategy, requests, []Decision{d})
		}
		return err
	})
	if err != nil {
		return Decision{}, err
	}
	d.Source = FromDatabase
	switch {
	case r.ID != "" && d.Allowed: // the grant may be an earlier one, of the ID: how much is left is not known
		l.denials.Forget(r.Bucket())
	case d.Blocked || !l.blocks(): // Postgres has to count the denials of a key that is not blocked
		l.denials.Learn(requests, []Decision{d}, asked)
	}
	return d, nil
}

// sendEachAlone is sendAlone for the requests that go out by themselves, those for one bucket in
// order. It uses as many connections as Combine has lanes.
func (l *Limiter) sendEachAlone(ctx context.Context, asks []*asked) {
	lanes := orDefault(l.config.Combine.Lanes, defaultLanes)
	if l.parent != nil {
		lanes = 1 // the caller's connection
	}
	var calls sync.WaitGroup
	room := make(chan struct{}, lanes)
	for _, ofBucket := range byBucket(asks, func(a *asked) bool { return l.alone(&a.Request) }) {
		room <- struct{}{}
		calls.Go(func() {
			defer func() { <-room }()
			for _, a := range ofBucket {
				a.decision, a.err = l.sendAlone(ctx, a.Request)
				a.served = true
			}
		})
	}
	calls.Wait()
}
