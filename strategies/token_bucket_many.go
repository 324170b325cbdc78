package strategies

import (
	"context"
	_ "embed"
	"math"
	"slices"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/call"
)

var (
	//go:embed sql/token_bucket/take_many.sql
	tokenBucketTakeManyFile string

	tokenBucketTakeMany = call.Statement(tokenBucketTakeManyFile, "token_bucket")
)

// many holds the arguments of a call of token_bucket_take_many: columns with one element per
// bucket, and columns with one element per request, in the same order.
type many struct {
	order           []int // of the call: indexes into the requests
	keys, limiters  []string
	tokens, windows []int64
	asks            []int64
	inTurn          bool    // a bucket may grant a part of what is asked
	last            []int64 // the number, from 1, of a bucket's last request
	wants, units    []int64 // one element per request
	aheads          []int64 // likewise; nil if no request takes ahead
}

// newMany sorts the requests into buckets.
func newMany(requests []rate.Request) (*many, error) {
	n := len(requests)
	numbers := make([]int64, 6*n) // one allocation for six columns
	column := func(i int) []int64 { return numbers[i*n : i*n : (i+1)*n] }
	m := &many{
		order: call.Order(requests), keys: make([]string, 0, n), limiters: make([]string, 0, n),
		tokens: column(0), windows: column(1), asks: column(2), last: column(3), wants: column(4), units: column(5),
	}
	if err := call.SameBucket(requests, m.order); err != nil {
		return nil, err
	}
	for row, i := range m.order {
		r := &requests[i]
		unit := max(r.Unit, 1)
		m.wants, m.units = append(m.wants, r.Tokens), append(m.units, unit)
		ask := r.Tokens / unit * unit
		if r.Tokens != 0 && (r.Tokens != unit || r.Ahead != 0) {
			m.inTurn = true
		}
		if k := len(m.keys) - 1; k >= 0 && m.keys[k] == r.Key && m.limiters[k] == r.Limiter {
			m.last[k] = int64(row + 1)
			m.inTurn = m.inTurn || m.asks[k] != 0 || ask != 0 // peeks take nothing, however many there are
			m.asks[k] += min(ask, math.MaxInt64-m.asks[k])    // which is more than any bucket has
			continue
		}
		m.keys, m.limiters = append(m.keys, r.Key), append(m.limiters, r.Limiter)
		m.tokens, m.windows = append(m.tokens, int64(r.Limit.Token())), append(m.windows, int64(r.Limit.Window()))
		m.last = append(m.last, int64(row+1))
		m.asks = append(m.asks, ask)
	}
	if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Ahead > 0 }) {
		for _, i := range m.order {
			m.aheads = append(m.aheads, int64(requests[i].Ahead))
		}
	}
	return m, nil
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

// takeInTurn decides several requests for one bucket.
func (m *many) takeInTurn(ctx context.Context, session rate.Session, requests []rate.Request, decisions []rate.Decision, how call.Manner) error {
	want := int64(0)
	for _, n := range m.wants {
		want += min(n, math.MaxInt64-want)
	}
	granted, nowNS, after, err := takeFromOne(ctx, session, &requests[0], max(1, want), 1, m.wants, m.units, m.aheads, how)
	if err != nil {
		return err
	}
	m.share(0, after, granted, after.Dated(nowNS), requests, decisions)
	return nil
}

// take decides requests for several buckets in one call.
func (m *many) take(ctx context.Context, session rate.Session, requests []rate.Request, decisions []rate.Decision, how call.Manner) error {
	last, wants, units, aheads := m.last, m.wants, m.units, m.aheads
	if !m.inTurn {
		last, wants, units, aheads = nil, nil, nil, nil
	}
	var nowNS int64
	var usual, rest []int64
	err := session.Row(ctx, tokenBucketTakeMany, []any{
		m.keys, oneForAll(m.limiters), oneForAll(m.tokens), oneForAll(m.windows), oneForAll(m.asks), last, wants, units, how.Relaxed, aheads,
	}, &nowNS, &usual, &rest, nil)
	if err != nil {
		return err
	}
	buckets, grants := readRows(m.tokens, m.asks, usual, rest)
	for k, b := range buckets {
		atNS := b.Dated(nowNS)
		if m.asks[k] > 0 { // the row may be later than nowNS by more than a step, but is not ahead of the clock: that fails
			atNS = max(nowNS, b.AtNS)
		}
		m.share(k, b, grants[k], atNS, requests, decisions)
	}
	return nil
}

// readRows returns the buckets after a call that asked for so many tokens of each, at the price
// tokens[k], and what it granted. usual and rest are its results: see token_bucket_take_many.sql.
func readRows(tokens, asks, usual, rest []int64) (buckets []bucket.Bucket, grants []int64) {
	buckets, grants = make([]bucket.Bucket, len(tokens)), make([]int64, len(tokens))
	for row := range slices.Chunk(usual, 3) {
		k := row[0] - 1
		buckets[k], grants[k] = bucket.Bucket{FullNS: row[1], TokenNS: tokens[k], AtNS: row[2]}, asks[k]
	}
	for row := range slices.Chunk(rest, 7) {
		k := row[0] - 1
		buckets[k], grants[k] = bucket.Bucket{FullNS: row[2], TokenNS: row[3], AtNS: row[4], LeasedNS: row[5], UntilNS: row[6]}, row[1]
	}
	return buckets, grants
}

// share divides what the bucket with index k granted at atNS among its requests, as in_turn.sql
// did: each in turn gets as many whole units as are left and, if one of them takes ahead, as there
// were for it.
func (m *many) share(k int, b bucket.Bucket, left, atNS int64, requests []rate.Request, decisions []rate.Decision) {
	b.FullNS -= left * b.TokenNS
	first := int64(0)
	if k > 0 {
		first = m.last[k-1]
	}
	for row := first; row < m.last[k]; row++ {
		most := left
		if m.aheads != nil && left > 0 {
			most = min(left, b.Within(atNS, &requests[m.order[row]]))
		}
		granted := min(m.wants[row], most) / m.units[row] * m.units[row]
		left -= granted
		b.FullNS += granted * b.TokenNS
		i := m.order[row]
		decisions[i] = b.Decision(&requests[i], atNS, granted)
	}
}
