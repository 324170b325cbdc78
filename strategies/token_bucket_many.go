package strategies

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
)

var (
	//go:embed token_bucket_take_many.sql
	tokenBucketTakeManyFile string
	//go:embed token_bucket_take_mixed.sql
	tokenBucketTakeMixedFile string

	tokenBucketTakeMany  = statement(tokenBucketTakeManyFile, "token_bucket")
	tokenBucketTakeMixed = statement(tokenBucketTakeMixedFile, "token_bucket")
)

// ofOneLimit says whether all requests are for the same limiter and limit, as those of
// one Limiter are.
func ofOneLimit(requests []pglimit.Request) bool {
	for i := range requests {
		if requests[i].Limit != requests[0].Limit || requests[i].Limiter != requests[0].Limiter {
			return false
		}
	}
	return true
}

// takeManyTokens decides requests of one limiter and limit, in one statement for them all.
func takeManyTokens(ctx context.Context, db pglimit.DB, requests []pglimit.Request, decisions []pglimit.Decision, relaxed bool) error {
	n := len(requests)
	order := lockOrder(requests)
	keys := make([]string, 0, n)
	numbers := make([]int64, 3*n) // one allocation for three columns
	lasts, wants, units := numbers[:0:n], numbers[n:2*n], numbers[2*n:]
	for row, i := range order {
		r := &requests[i]
		if k := len(keys); k > 0 && keys[k-1] == r.Key {
			lasts[k-1]++
		} else {
			keys, lasts = append(keys, r.Key), append(lasts, int64(row+1))
		}
		wants[row], units[row] = r.Tokens, max(r.Unit, 1)
	}
	scale := scaleOf(requests[0].Limit)
	answer := make([]int64, 4*len(keys))
	rows, grants, debts, ats := answer[:0:len(keys)], answer[len(keys):][:0:len(keys)], answer[2*len(keys):][:0:len(keys)], answer[3*len(keys):][:0]
	err := db.QueryRow(ctx, tokenBucketTakeMany,
		keys, lasts, wants, units, requests[0].Limiter, scale.token, scale.refill, scale.burst, relaxed,
	).Scan(&rows, &grants, &debts, &ats)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == lockNotAvailable {
		return takeMixedTokens(ctx, db, requests, decisions, relaxed) // which takes key by key, and may wait
	}
	if err != nil {
		return err
	}
	for i, number := range rows {
		last := lasts[number-1]
		first := int64(1)
		if number > 1 {
			first = lasts[number-2] + 1
		}
		// What was granted in all is shared out as the function did: to each in turn as many
		// whole units as there are left.
		left := grants[i]
		b := bucket{debt: debts[i] - left*scale.token, atUS: ats[i], scale: scale}
		for row := first; row <= last; row++ {
			r := requests[order[row-1]]
			unit := max(r.Unit, 1)
			granted := min(r.Tokens, left) / unit * unit
			left -= granted
			b.debt += granted * scale.token
			decisions[order[row-1]] = b.decision(r, granted)
		}
	}
	return nil
}

// takeMixedTokens decides requests of several limiters or limits, one after another in
// one call.
func takeMixedTokens(ctx context.Context, db pglimit.DB, requests []pglimit.Request, decisions []pglimit.Decision, relaxed bool) error {
	order := lockOrder(requests)
	n := len(requests)
	keys, limiters := make([]string, n), make([]string, n)
	numbers := make([]int64, 5*n) // one allocation for five columns
	tokens, refills, bursts, wants, units := numbers[:n], numbers[n:2*n], numbers[2*n:3*n], numbers[3*n:4*n], numbers[4*n:]
	for row, i := range order {
		r, scale := &requests[i], scaleOf(requests[i].Limit)
		keys[row], limiters[row] = r.Key, r.Limiter
		tokens[row], refills[row], bursts[row] = scale.token, scale.refill, scale.burst
		wants[row], units[row] = r.Tokens, max(r.Unit, 1)
	}
	rows, err := db.Query(ctx, tokenBucketTakeMixed, keys, limiters, tokens, refills, bursts, wants, units, relaxed)
	if err != nil {
		return err
	}
	row := 0
	var granted, debt, atUS int64
	_, err = pgx.ForEachRow(rows, []any{&granted, &debt, &atUS}, func() error {
		r := requests[order[row]]
		decisions[order[row]] = bucket{debt: debt, atUS: atUS, scale: scaleOf(r.Limit)}.decision(r, granted)
		row++
		return nil
	})
	return err
}
