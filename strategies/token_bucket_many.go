package strategies

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	tokenBucketTakeMany  = statement("token_bucket/take_many.sql")
	tokenBucketTakeShard = statement("token_bucket/take_shard.sql")
	tokenBucketWait      = statement("token_bucket/wait.sql")
)

// many holds the arguments of a call of token_bucket_take_many: columns with one element per
// bucket, in lock order, and columns with one element per request, in the caller's order.
type many struct {
	requests        []rate.Request
	keys, limiters  []string
	tokens, windows []int64
	calendars       []*string // nil if no limit has one
	asks            []int64   // the sums of what is asked of the buckets, in whole units

	sharded, marked bool // Citus distributes the table; so the session says

	plain         bool    // each bucket has one request, all or nothing: the columns below are not sent
	members       []int64 // each request's bucket, from 1
	wants, units  []int64
	aheads, lasts []int64 // nil if no request takes ahead, and if there are no groups; lasts: each group's last request, from 1
}

// takeMany decides requests for one bucket or several in one call. A call that took nothing is made
// again, because the next one sees the change that made it fail; one for groups then locks its rows
// first, so that nobody can be faster.
func takeMany(ctx context.Context, session rate.Session, requests []rate.Request, grouped bool) (decisions []rate.Decision, err error) {
	m := newMany(requests)
	m.marked = postgres.IsSharded(session)
	m.sharded = m.marked
	how, tries, sure := postgres.MannerOf(session, requests), 2, !session.Autocommits()
	if grouped || len(m.keys) == 1 {
		tries = 5
	}
	for {
		err := postgres.Again(ctx, session, tries, func() (err error) {
			decisions, err = m.take(ctx, session, how, sure)
			sure = sure || grouped
			return err
		})
		if !grouped || !postgres.Is(err, postgres.LockNotAvailable) || how.Patience == nil || ctx.Err() != nil {
			return decisions, postgres.Explain(err)
		}
		if err := m.wait(ctx, session, err); err != nil {
			return nil, err
		}
	}
}

// newMany sorts the requests into buckets.
func newMany(requests []rate.Request) *many {
	n, order := len(requests), postgres.Order(requests)
	numbers := make([]int64, 6*n) // one allocation for six columns
	column := func(i int) []int64 { return numbers[i*n : (i+1)*n : (i+1)*n] }
	m := &many{
		requests: requests, keys: make([]string, 0, n), limiters: make([]string, 0, n), plain: true,
		tokens: column(0)[:0], windows: column(1)[:0], asks: column(2)[:0], members: column(3), wants: column(4), units: column(5),
	}
	for _, i := range order {
		r := &requests[i]
		m.wants[i], m.units[i] = r.Tokens, max(r.Unit, 1)
		k := len(m.keys) - 1
		if k < 0 || m.keys[k] != r.Key || m.limiters[k] != r.Limiter {
			m.keys, m.limiters = append(m.keys, r.Key), append(m.limiters, r.Limiter)
			m.tokens, m.windows = append(m.tokens, int64(r.Limit.Token())), append(m.windows, int64(r.Limit.Window()))
			m.calendars = append(m.calendars, calendarOf(r))
			m.asks = append(m.asks, 0)
			k++
		} else {
			m.plain = false
		}
		m.members[i] = int64(k + 1)
		m.asks[k] += min(r.Tokens/m.units[i]*m.units[i], math.MaxInt64-m.asks[k]) // which is more than any bucket has
		m.plain = m.plain && r.Group == 0 && r.Ahead == 0 && (r.Tokens == 0 || r.Unit == r.Tokens)
	}
	if first := requests[0].Limit.Calendar; !slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Limit.Calendar != first }) {
		m.calendars = m.calendars[:1] // one for all
		if first == "" {
			m.calendars = nil
		}
	}
	if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Ahead > 0 }) {
		for i := range requests {
			m.aheads = append(m.aheads, int64(requests[i].Ahead))
		}
	}
	if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Group != 0 }) {
		for i := range requests {
			if i == len(requests)-1 || requests[i].Group == 0 || requests[i].Group != requests[i+1].Group {
				m.lasts = append(m.lasts, int64(i+1))
			}
		}
	}
	return m
}

// oneForAll shortens a column to one element if all its elements are the same: reading a
// column costs Postgres as much as taking a token.
func oneForAll[T comparable](column []T) []T {
	for _, element := range column {
		if element != column[0] {
			return column
		}
	}
	return column[:1]
}

// take makes the call.
func (m *many) take(ctx context.Context, session rate.Session, how postgres.Manner, sure bool) ([]rate.Decision, error) {
	members, wants, units := m.members, m.wants, m.units
	if m.plain {
		members, wants, units = nil, nil, nil
	}
	var usual, rest, grants []int64
	for range 2 {
		var err error
		switch {
		case !m.sharded:
			err = session.Row(ctx, tokenBucketTakeMany, []any{
				m.keys, oneForAll(m.limiters), oneForAll(m.tokens), oneForAll(m.windows), oneForAll(m.asks),
				members, wants, units, m.aheads, m.lasts, sure, how.Patience, how.Relaxed, m.calendars,
			}, &usual, &rest, &grants, nil)
		case m.lasts != nil:
			return takeGroup(ctx, session, m.requests, how)
		case !m.marked && len(m.keys) > 1:
			return nil, postgres.ErrSharded
		default:
			err = session.Row(ctx, tokenBucketTakeShard, []any{
				m.keys[0], m.keys, oneForAll(m.limiters), oneForAll(m.tokens), oneForAll(m.windows), oneForAll(m.asks),
				members, wants, units, m.aheads, how.Patience, how.Relaxed, m.calendars,
			}, &usual, &rest, &grants)
			if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && (pg.Code == postgres.UndefinedFunction || strings.HasPrefix(pg.Message, "cache lookup failed for function")) {
				err = nil // the function is gone: the table is not distributed any more
			}
		}
		if err != nil {
			return nil, err
		}
		if usual != nil || rest != nil {
			break
		}
		m.sharded = !m.sharded // it says so, and has done nothing
	}
	if usual == nil && rest == nil { // both say so: it is being changed
		return nil, fmt.Errorf("%w: the tables are being distributed, or brought back: ask again", rate.ErrNothingTaken)
	}
	buckets, dates, all := m.read(usual, rest)
	return m.decide(buckets, dates, all, grants), nil
}

// read returns the buckets as they were before the call, and when it decided about them. all: what was
// taken from the bucket is all that was asked.
func (m *many) read(usual, rest []int64) (buckets []bucket.Row, dates []int64, all []bool) {
	buckets, dates, all = make([]bucket.Row, len(m.keys)), make([]int64, len(m.keys)), make([]bool, len(m.keys))
	for row := range slices.Chunk(rest, 8) { // what is told again comes later
		k, b := row[0]-1, bucketOf(row[3:])
		dates[k], all[k] = row[1], row[2] == m.asks[k]
		b.FullNS -= row[2] * b.TokenNS
		buckets[k] = b
	}
	for row := range slices.Chunk(usual, 4) {
		k := row[0] - 1
		dates[k], all[k] = row[2], true
		buckets[k] = bucket.Row{FullNS: row[1] - m.asks[k]*m.tokens[k], TokenNS: m.tokens[k], AtNS: row[2], UntilNS: row[3]}
	}
	return buckets, dates, all
}

// decide goes through the requests once more, as Postgres did. grants is nil if all[bucket] says it.
func (m *many) decide(buckets []bucket.Row, dates []int64, all []bool, grants []int64) []rate.Decision {
	decisions := make([]rate.Decision, len(m.requests))
	for i := range m.requests {
		r, k := &m.requests[i], m.members[i]-1
		granted := int64(0)
		switch {
		case all[k]:
			granted = r.Tokens / m.units[i] * m.units[i]
		case !m.plain && grants != nil:
			granted = grants[i]
		}
		buckets[k].FullNS += granted * buckets[k].TokenNS
		decisions[i] = buckets[k].Decision(r, dates[k], granted)
		if r.Group != 0 && granted == 0 {
			decisions[i].Allowed = decisions[i].Remaining >= r.Tokens
		}
	}
	return decisions
}

// wait is called after a call for groups has met a held row, as err says. A single group that is not impatient
// waits until each of its rows was free. For others the error says which rows are held, or is nil if none is any more.
func (m *many) wait(ctx context.Context, session rate.Session, err error) error {
	first := &m.requests[0]
	patient := !slices.ContainsFunc(m.requests, func(r rate.Request) bool { return r.Impatient || r.Group != first.Group })
	var numbers []int64
	var failed error
	if m.sharded {
		patience := &groupPatience
		if patient {
			patience = nil
		}
		numbers, failed = waitForGroup(ctx, session, m.requests, patience)
	} else {
		failed = postgres.Again(ctx, session, 5, func() error {
			return session.Row(ctx, tokenBucketWait, []any{m.keys, oneForAll(m.limiters), patient}, &numbers, nil)
		})
	}
	switch {
	case patient:
		return postgres.Explain(failed)
	case failed != nil || len(numbers) == 0:
		return postgres.Explain(err)
	}
	held := &rate.HeldError{Err: postgres.Explain(err)}
	for _, number := range numbers {
		held.Held = append(held.Held, rate.Bucket{Limiter: m.limiters[number-1], Key: m.keys[number-1]})
	}
	return held
}
