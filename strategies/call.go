package strategies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// validate turns away a call before anything is sent.
func validate(strategy rate.Strategy, requests []rate.Request) error {
	for i := range requests {
		if err := requests[i].Validate(); err != nil {
			return err
		}
		if err := strategy.Check(requests[i].Limit); err != nil {
			return err
		}
	}
	return nil
}

// sameBucket is the error of a call that names a bucket twice, with different limits.
func sameBucket(requests []rate.Request, order []int) error {
	for n := 1; n < len(order); n++ {
		r, before := &requests[order[n]], &requests[order[n-1]]
		if r.Key == before.Key && r.Limiter == before.Limiter && r.Limit != before.Limit {
			return &rate.RequestError{Field: "Limit", Why: fmt.Sprintf("is %v and %v for the same key %q in one call: a bucket has one limit at a time (use another limiter name)", before.Limit, r.Limit, r.Key)}
		}
	}
	return nil
}

// manner is how a call goes about it. In the caller's transaction it is the zero manner:
// that transaction keeps the durability and the patience that it has.
type manner struct {
	relaxed   bool // the commit need not wait for the disk
	impatient bool // gives up after about 20 ms if somebody holds a row
}

// mannerOf the requests. A call for several buckets is impatient: while it waits for one
// row, others wait for those that it holds.
func mannerOf(session rate.Session, requests []rate.Request) manner {
	if !session.Autocommits() {
		return manner{}
	}
	m := manner{relaxed: true, impatient: severalBuckets(requests)}
	for i := range requests {
		m.relaxed = m.relaxed && requests[i].Durability != rate.Durable
		m.impatient = m.impatient || requests[i].Impatient
	}
	return m
}

// loseLockPatience makes a transaction of ours impatient.
var loseLockPatience = rate.Statement{SQL: "select pg_catalog.set_config('lock_timeout', '20ms', true)"}

func severalBuckets(requests []rate.Request) bool {
	for i := range requests {
		if requests[i].Key != requests[0].Key || requests[i].Limiter != requests[0].Limiter {
			return true
		}
	}
	return false
}

// lockOrder is the one order in which every call locks buckets that are there, and makes
// those that are not: by key, then limiter, bytewise. Requests for the same bucket stay in the caller's order.
// It holds indexes into requests.
func lockOrder(requests []rate.Request) []int {
	order := make([]int, len(requests))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(
			cmp.Compare(requests[a].Key, requests[b].Key),
			cmp.Compare(requests[a].Limiter, requests[b].Limiter),
		)
	})
	return order
}

// takeOne decides one request.
type takeOne func(ctx context.Context, session rate.Session, request *rate.Request, how manner) (rate.Decision, error)

// takeEach makes a Take of a takeOne: one request goes straight to session, several go
// one after another through one transaction (a savepoint, inside the
// caller's), so that an error takes nothing.
func takeEach(ctx context.Context, session rate.Session, requests []rate.Request, one takeOne) ([]rate.Decision, error) {
	decisions := make([]rate.Decision, len(requests))
	how := mannerOf(session, requests)
	var err error
	switch len(requests) {
	case 0:
	case 1:
		err = again(ctx, session, 5, func() error {
			decisions[0], err = one(ctx, session, &requests[0], how)
			return err
		})
	default:
		if err := sameBucket(requests, lockOrder(requests)); err != nil {
			return nil, err
		}
		err = again(ctx, session, 5, func() error {
			return session.OneConnection(ctx, func(conn rate.Session) error {
				b := blockOn(conn)
				err := b.takeEach(ctx, requests, decisions, how, one)
				if err != nil {
					b.abandon(ctx)
				}
				return err
			})
		})
	}
	if err != nil {
		return nil, explain(err)
	}
	return decisions, nil
}

// again calls take until it is not overtaken (SQLSTATE 40001: it was late, or a bucket changed
// meanwhile), so often at most. Not in the caller's transaction, which the error has spoilt.
func again(ctx context.Context, session rate.Session, tries int, take func() error) (err error) {
	for range tries {
		err = take()
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != serializationFailure || !session.Autocommits() || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (b *block) takeEach(ctx context.Context, requests []rate.Request, decisions []rate.Decision, how manner, one takeOne) (err error) {
	if err := b.send(ctx, b.open); err != nil {
		return err
	}
	b.opened = true
	for _, i := range lockOrder(requests) {
		if decisions[i], err = one(ctx, b.conn, &requests[i], how); err != nil {
			return err
		}
	}
	return b.send(ctx, b.keep)
}
