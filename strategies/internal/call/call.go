// Package call is how strategies go about a call: in which order, in which transaction, how
// often, and what its errors mean.
package call

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Validate turns away a call before anything is sent.
func Validate(strategy rate.Strategy, requests []rate.Request) error {
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

// SameBucket is the error of a call that names a bucket twice, with different limits.
func SameBucket(requests []rate.Request, order []int) error {
	for n := 1; n < len(order); n++ {
		r, before := &requests[order[n]], &requests[order[n-1]]
		if r.Key == before.Key && r.Limiter == before.Limiter && r.Limit != before.Limit {
			return &rate.RequestError{Field: "Limit", Why: fmt.Sprintf("is %v and %v for the same key %q in one call: a bucket has one limit at a time (use another limiter name)", before.Limit, r.Limit, r.Key)}
		}
	}
	return nil
}

// Manner is how a call goes about it. In the caller's transaction it is the zero manner:
// that transaction keeps the durability and the patience that it has.
type Manner struct {
	Relaxed   bool // the commit need not wait for the disk
	Impatient bool // gives up after about 20 ms if somebody holds a row
}

// MannerOf the requests. A call for several buckets is impatient: while it waits for one
// row, others wait for those that it holds.
func MannerOf(session rate.Session, requests []rate.Request) Manner {
	if !session.Autocommits() {
		return Manner{}
	}
	m := Manner{Relaxed: true, Impatient: severalBuckets(requests)}
	for i := range requests {
		m.Relaxed = m.Relaxed && requests[i].Durability != rate.Durable
		m.Impatient = m.Impatient || requests[i].Impatient
	}
	return m
}

// LosePatience makes a transaction of ours impatient.
var LosePatience = rate.Statement{SQL: "select pg_catalog.set_config('lock_timeout', '20ms', true)"}

func severalBuckets(requests []rate.Request) bool {
	for i := range requests {
		if requests[i].Key != requests[0].Key || requests[i].Limiter != requests[0].Limiter {
			return true
		}
	}
	return false
}

// Order is the one order in which every call locks buckets that are there, and makes
// those that are not: by key, then limiter, bytewise. Requests for the same bucket stay in the caller's order.
// It holds indexes into requests.
func Order(requests []rate.Request) []int {
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

// One decides one request.
type One func(ctx context.Context, session rate.Session, request *rate.Request, how Manner) (rate.Decision, error)

// Each makes a Take of a One: one request goes straight to session, several go
// one after another through one transaction (a savepoint, inside the
// caller's), so that an error takes nothing.
func Each(ctx context.Context, session rate.Session, requests []rate.Request, one One) ([]rate.Decision, error) {
	decisions := make([]rate.Decision, len(requests))
	how := MannerOf(session, requests)
	var err error
	switch len(requests) {
	case 0:
	case 1:
		err = Again(ctx, session, 5, func() error {
			decisions[0], err = one(ctx, session, &requests[0], how)
			return err
		})
	default:
		if err := SameBucket(requests, Order(requests)); err != nil {
			return nil, err
		}
		err = Again(ctx, session, 5, func() error {
			return session.OneConnection(ctx, func(conn rate.Session) error {
				b := BlockOn(conn)
				err := b.each(ctx, requests, decisions, how, one)
				if err != nil {
					b.Abandon(ctx)
				}
				return err
			})
		})
	}
	if err != nil {
		return nil, Explain(err)
	}
	return decisions, nil
}

// Again calls take until it is not overtaken (SQLSTATE 40001: it was late, or a bucket changed
// meanwhile), so often at most. Not in the caller's transaction, which the error has spoilt.
func Again(ctx context.Context, session rate.Session, tries int, take func() error) (err error) {
	for range tries {
		err = take()
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != serializationFailure || !session.Autocommits() || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (b *Block) each(ctx context.Context, requests []rate.Request, decisions []rate.Decision, how Manner, one One) (err error) {
	if err := b.Send(ctx, b.Open); err != nil {
		return err
	}
	b.Opened = true
	for _, i := range Order(requests) {
		if decisions[i], err = one(ctx, b.Conn, &requests[i], how); err != nil {
			return err
		}
	}
	return b.Send(ctx, b.Keep)
}
