package strategies

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
)

var (
	//go:embed sql/token_bucket/take_groups.sql
	tokenBucketTakeGroupsFile string
	//go:embed sql/token_bucket/wait.sql
	tokenBucketWaitFile string

	tokenBucketTakeGroups = call.Statement(tokenBucketTakeGroupsFile, "token_bucket")
	tokenBucketWait       = call.Statement(tokenBucketWaitFile, "token_bucket")
)

// groups holds the arguments of a call of token_bucket_take_groups: columns with one element per
// bucket, in lock order, and columns with one element per request, in the caller's order.
type groups struct {
	requests        []rate.Request // of all groups
	lasts           []int64        // the number, from 1, of each group's last request
	members         []int64        // each request's bucket, from 1
	asks            []int64
	keys, limiters  []string
	tokens, windows []int64
	sums            []int64 // what is asked of each bucket
}

// takeGroups decides in one round trip. The first try locks only the rows that it writes; if
// another call was faster, a second one locks them all and then decides.
func (s TokenBucket) takeGroups(ctx context.Context, session rate.Session, of [][]rate.Request) ([][]rate.Decision, error) {
	g, err := newGroups(s, of)
	if err != nil {
		return nil, err
	}
	if len(g.requests) == 0 {
		return make([][]rate.Decision, len(of)), nil
	}
	how := call.MannerOf(session, g.requests)
	patient := len(of) == 1 && !slices.ContainsFunc(g.requests, func(r rate.Request) bool { return r.Impatient })
	how.Impatient = session.Autocommits()
	for {
		decisions, err := g.take(ctx, session, how)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != call.LockNotAvailable || !how.Impatient || ctx.Err() != nil {
			return g.cut(decisions, of), call.Explain(err)
		}
		held, failed := g.wait(ctx, session, patient)
		switch {
		case !patient && (failed != nil || len(held) == 0):
			return nil, call.Explain(err)
		case !patient:
			return nil, &rate.HeldError{Held: held, Err: call.Explain(err)}
		case failed != nil:
			return nil, call.Explain(failed)
		}
	}
}

// newGroups checks the requests and sorts them into buckets.
func newGroups(s TokenBucket, of [][]rate.Request) (*groups, error) {
	g := &groups{requests: slices.Concat(of...), lasts: make([]int64, len(of))}
	last := int64(0)
	for i := range of {
		last += int64(len(of[i]))
		g.lasts[i] = last
	}
	if err := call.Validate(s, g.requests); err != nil {
		return nil, err
	}
	order := call.Order(g.requests)
	if err := call.SameBucket(g.requests, order); err != nil {
		return nil, err
	}
	n := len(g.requests)
	numbers := make([]int64, 5*n) // one allocation for five columns
	g.members, g.asks, g.tokens, g.windows, g.sums = numbers[:n], numbers[n:2*n], numbers[2*n:2*n:3*n], numbers[3*n:3*n:4*n], numbers[4*n:4*n]
	g.keys, g.limiters = make([]string, 0, n), make([]string, 0, n)
	for n, i := range order {
		r := &g.requests[i]
		if r.Tokens == 0 || r.Unit != r.Tokens || r.Ahead != 0 {
			return nil, &rate.RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d in units of %d, %v ahead: the requests of a group take all or nothing, and nothing ahead", r.Tokens, r.Unit, r.Ahead)}
		}
		if before := &g.requests[order[max(n-1, 0)]]; n == 0 || r.Key != before.Key || r.Limiter != before.Limiter {
			g.keys, g.limiters = append(g.keys, r.Key), append(g.limiters, r.Limiter)
			g.tokens, g.windows = append(g.tokens, int64(r.Limit.Token())), append(g.windows, int64(r.Limit.Window()))
			g.sums = append(g.sums, 0)
		}
		g.members[i], g.asks[i] = int64(len(g.keys)), r.Tokens
		sum := &g.sums[len(g.sums)-1]
		*sum += min(r.Tokens, math.MaxInt64-*sum) // which is more than any bucket has
	}
	if err := g.checkTwice(); err != nil {
		return nil, err
	}
	return g, nil
}

// checkTwice returns an error if a group has two requests for one bucket.
func (g *groups) checkTwice() error {
	seen := make([]int, len(g.keys)) // the last group with a request for the bucket
	group := 1
	for i, member := range g.members {
		for int64(i) >= g.lasts[group-1] {
			group++
		}
		if seen[member-1] == group {
			r := &g.requests[i]
			return &rate.RequestError{Field: "Key", Why: fmt.Sprintf("is %q twice in one group, for the limiter %q: ask for the sum of the tokens", r.Key, r.Limiter)}
		}
		seen[member-1] = group
	}
	return nil
}

// take makes the call. A second try sees the change by another call that made the first one fail,
// and locks the rows. In the caller's transaction there is only one try, and it must not fail.
func (g *groups) take(ctx context.Context, session rate.Session, how call.Manner) (decisions []rate.Decision, err error) {
	locked := !how.Impatient
	err = call.Again(ctx, session, 5, func() error {
		decisions, err = g.takeOnce(ctx, session, how, locked)
		locked = true
		return err
	})
	return decisions, err
}

func (g *groups) takeOnce(ctx context.Context, session rate.Session, how call.Manner, locked bool) ([]rate.Decision, error) {
	var nowNS int64
	var granted []bool
	var usual, rest []int64
	err := session.Row(ctx, tokenBucketTakeGroups, []any{
		g.keys, oneForAll(g.limiters), oneForAll(g.tokens), oneForAll(g.windows), oneForAll(g.sums), g.lasts, g.members, g.asks, locked, how.Impatient, how.Relaxed,
	}, &nowNS, &granted, &usual, &rest, nil)
	if err != nil {
		return nil, err
	}
	buckets, takes := readRows(g.tokens, g.sums, usual, rest)
	for k := range buckets {
		buckets[k].FullNS -= takes[k] * g.tokens[k] // as they were before the call
	}
	dates := make([]int64, len(buckets))
	for k, b := range buckets {
		if dates[k] = b.Dated(nowNS); len(rest) == 0 { // the row may be later than nowNS by more than a step, but not ahead of the clock
			dates[k] = max(nowNS, b.AtNS)
		}
	}
	return g.decide(dates, granted, buckets), nil
}

// decide goes through the groups once more, as the SQL function did. dates: when the buckets were decided
// about.
func (g *groups) decide(dates []int64, granted []bool, buckets []bucket.Bucket) []rate.Decision {
	decisions := make([]rate.Decision, len(g.requests))
	g.each(granted, func(i int, granted bool) {
		r, b, atNS := &g.requests[i], &buckets[g.members[i]-1], dates[g.members[i]-1]
		if granted {
			b.FullNS += g.asks[i] * b.TokenNS
			decisions[i] = b.Decision(r, atNS, r.Tokens)
			return
		}
		decisions[i] = b.Decision(r, atNS, 0)
		decisions[i].Allowed = decisions[i].Remaining >= r.Tokens
	})
	return decisions
}

// each calls f for each request, in order, with whether its group was granted.
func (g *groups) each(granted []bool, f func(i int, granted bool)) {
	first := 0
	for group, last := range g.lasts {
		for i := first; i < int(last); i++ {
			f(i, granted[group])
		}
		first = int(last)
	}
}

// cut cuts the decisions into groups.
func (g *groups) cut(decisions []rate.Decision, of [][]rate.Request) [][]rate.Decision {
	if decisions == nil {
		return nil
	}
	cut := make([][]rate.Decision, len(of))
	first := int64(0)
	for group, last := range g.lasts {
		cut[group] = decisions[first:last:last]
		first = last
	}
	return cut
}

// wait waits until each row was free, as long as it takes or a moment. It returns the buckets whose
// rows were not.
func (g *groups) wait(ctx context.Context, session rate.Session, patient bool) (held []rate.Bucket, err error) {
	var numbers []int64
	err = call.Again(ctx, session, 5, func() error {
		return session.Row(ctx, tokenBucketWait, []any{g.keys, oneForAll(g.limiters), oneForAll(g.tokens), patient}, &numbers, nil)
	})
	for _, number := range numbers {
		held = append(held, rate.Bucket{Limiter: g.limiters[number-1], Key: g.keys[number-1]})
	}
	return held, err
}
