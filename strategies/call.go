package strategies

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// validate turns away a call before anything is sent.
func validate(strategy pglimit.Strategy, requests []pglimit.Request) error {
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

// autocommits says whether a statement sent to db is a transaction of its own. What
// is not known to be one is treated as the caller's transaction.
func autocommits(db pglimit.DB) bool {
	switch db := db.(type) {
	case *pgxpool.Pool:
		return true
	case *pgxpool.Conn:
		return db.Conn().PgConn().TxStatus() == 'I'
	case *pgx.Conn:
		return db.PgConn().TxStatus() == 'I'
	}
	return false
}

// relaxes says whether the call may commit without waiting for the disk: nobody
// asked for more, and the transaction is ours. A caller's transaction keeps
// the durability that it has.
func relaxes(db pglimit.DB, requests []pglimit.Request) bool {
	return autocommits(db) && !slices.ContainsFunc(requests, func(r pglimit.Request) bool {
		return r.Durability == pglimit.Durable
	})
}

// lockOrder is the one order in which every call locks buckets: by key, then
// limiter, bytewise. Requests for the same bucket stay in the caller's order.
// It holds indexes into requests.
func lockOrder(requests []pglimit.Request) []int {
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

// takeOne decides one request. relaxed is as in relaxes.
type takeOne func(ctx context.Context, db pglimit.DB, request pglimit.Request, relaxed bool) (pglimit.Decision, error)

// takeEach makes a Take of a takeOne: one request goes straight to db, several go
// one after another through one transaction (a savepoint, inside the
// caller's), so that an error takes nothing.
func takeEach(ctx context.Context, db pglimit.DB, requests []pglimit.Request, one takeOne) ([]pglimit.Decision, error) {
	decisions := make([]pglimit.Decision, len(requests))
	relaxed := relaxes(db, requests)
	var err error
	switch len(requests) {
	case 0:
	case 1:
		decisions[0], err = one(ctx, db, requests[0], relaxed)
	default:
		err = onOneConnection(ctx, db, func(conn pglimit.DB) error {
			b := blockOn(conn)
			err := b.takeEach(ctx, requests, decisions, relaxed, one)
			if err != nil {
				b.abandon(ctx)
			}
			return err
		})
	}
	if err != nil {
		return nil, explain(err)
	}
	return decisions, nil
}

func (b *block) takeEach(ctx context.Context, requests []pglimit.Request, decisions []pglimit.Decision, relaxed bool, one takeOne) (err error) {
	if err := b.send(ctx, b.open); err != nil {
		return err
	}
	b.opened = true
	for _, i := range lockOrder(requests) {
		if decisions[i], err = one(ctx, b.conn, requests[i], relaxed); err != nil {
			return err
		}
	}
	return b.send(ctx, b.keep)
}
