package strategies

import (
	"context"
	_ "embed"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	//go:embed sql/token_bucket/take_many.sql
	tokenBucketTakeManyFile string

	tokenBucketTakeMany = statement(tokenBucketTakeManyFile, "token_bucket")
)

// many is a call of token_bucket_take_many: its columns, with an element per bucket or one
// for all, and those of the requests, in the same order.
type many struct {
	order           []int // indexes into the requests
	keys, limiters  []string
	tokens, windows []int64
	asks            []int64
	last            []int64 // behind a bucket's last request
	wants, units    []int64 // of the requests
}

// newMany sorts the requests into buckets.
func newMany(requests []rate.Request) (*many, error) {
	n := len(requests)
	numbers := make([]int64, 6*n) // one allocation for six columns
	column := func(i int) []int64 { return numbers[i*n : i*n : (i+1)*n] }
	m := &many{
		order: lockOrder(requests), keys: make([]string, 0, n), limiters: make([]string, 0, n),
		tokens: column(0), windows: column(1), asks: column(2), last: column(3), wants: column(4), units: column(5),
	}
	if err := sameBucket(requests, m.order); err != nil {
		return nil, err
	}
	for row, i := range m.order {
		r := &requests[i]
		m.wants, m.units = append(m.wants, r.Tokens), append(m.units, max(r.Unit, 1))
		if k := len(m.keys) - 1; k >= 0 && m.keys[k] == r.Key && m.limiters[k] == r.Limiter {
			m.last[k], m.asks[k] = int64(row+1), planned
			continue
		}
		m.keys, m.limiters = append(m.keys, r.Key), append(m.limiters, r.Limiter)
		m.tokens, m.windows = append(m.tokens, int64(r.Limit.Token())), append(m.windows, int64(r.Limit.Window()))
		m.last = append(m.last, int64(row+1))
		ask := planned
		if r.Tokens == 0 || r.Tokens == r.Unit {
			ask = r.Tokens
		}
		m.asks = append(m.asks, ask)
	}
	return m, nil
}

// planned: what a bucket gets depends on what it has, because it is asked for more than one
// request, or for as much as there is.
const planned = int64(-1)

// oneForAll is the column as it is sent, an element if all are the same: reading a column
// costs Postgres as much as taking a token.
func oneForAll[T comparable](column []T) []T {
	for _, element := range column {
		if element != column[0] {
			return column
		}
	}
	return column[:1]
}

// takeInTurn decides several requests for one bucket.
func (m *many) takeInTurn(ctx context.Context, session rate.Session, requests []rate.Request, decisions []rate.Decision, how manner) error {
	granted, nowNS, after, err := takeFromOne(ctx, session, &requests[0], 1, 1, m.wants, m.units, how)
	if err != nil {
		return err
	}
	m.share(after, granted, nowNS, 0, m.last[0], requests, decisions)
	return nil
}

// take decides requests for several buckets in one call.
func (m *many) take(ctx context.Context, session rate.Session, requests []rate.Request, decisions []rate.Decision, how manner) error {
	asks, last, wants, units := oneForAll(m.asks), m.last, m.wants, m.units
	if !slices.Contains(asks, planned) {
		last, wants, units = nil, nil, nil
	}
	var nowNS int64
	var grants, numbers, fulls, ats, leased, untils, denied, deniedFulls, deniedTokens, deniedAts, deniedLeased, deniedUntils []int64
	err := session.Row(ctx, tokenBucketTakeMany, []any{
		m.keys, oneForAll(m.limiters), oneForAll(m.tokens), oneForAll(m.windows), asks, last, wants, units, how.relaxed,
	}, &nowNS, &grants, &numbers, &fulls, &ats, &leased, &untils, &denied, &deniedFulls, &deniedTokens, &deniedAts, &deniedLeased, &deniedUntils)
	if err != nil {
		return err
	}
	if grants == nil {
		grants = m.asks
	}
	buckets := make([]bucket, len(m.keys))
	for k := range buckets {
		buckets[k] = bucket{fullNS: nowNS + grants[k]*m.tokens[k], tokenNS: m.tokens[k], atNS: nowNS}
	}
	for i, fullNS := range fulls {
		k := i
		if numbers != nil {
			k = int(numbers[i] - 1)
		}
		buckets[k].fullNS, buckets[k].atNS = fullNS, ats[i]
		if leased != nil {
			buckets[k].leasedNS, buckets[k].untilNS = leased[i], untils[i]
		}
	}
	for i, number := range denied {
		grants[number-1] = 0
		buckets[number-1] = bucket{
			fullNS: deniedFulls[i], tokenNS: deniedTokens[i], atNS: deniedAts[i],
			leasedNS: deniedLeased[i], untilNS: deniedUntils[i],
		}
	}
	first := int64(0)
	for k, b := range buckets {
		atNS := nowNS
		if !b.ahead(nowNS) {
			atNS = max(nowNS, b.atNS) // not before the grants that it counts
		}
		m.share(b, grants[k], atNS, first, m.last[k], requests, decisions)
		first = m.last[k]
	}
	return nil
}

// share out what a bucket granted, as the function did: to each request in turn as many whole
// units as there are left. The rows first to last are its requests.
func (m *many) share(b bucket, left, atNS, first, last int64, requests []rate.Request, decisions []rate.Decision) {
	b.fullNS -= left * b.tokenNS
	for row := first; row < last; row++ {
		granted := min(m.wants[row], left) / m.units[row] * m.units[row]
		left -= granted
		b.fullNS += granted * b.tokenNS
		i := m.order[row]
		decisions[i] = b.decision(&requests[i], atNS, granted)
	}
}
