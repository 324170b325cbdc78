package strategies

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
)

// WarmUp grants the rate of the limit to a key that is in use, and less to one that has been idle: for services that
// are slow while their caches are cold. It is SmoothWarmingUp of the RateLimiter in Guava. With Every(500 *
// time.Millisecond), a Period of 4 s and a ColdFactor of 3, those who wait in a row wait 0, 1.375, 1.125, 0.875,
// 0.625, 0.5 and 0.5 s, and after 4.5 s without a request it is the same again.
//
// A grant is paid for afterwards: a request that finds the key free gets up to Limit.Burst tokens at once, and the next
// one is granted when these are paid for. So in any span it never grants more than the limit.
//
// A key that is cold has stored permits. How many those are, and what each costs:
//
//	stable    = Limit.Token(), cold = ColdFactor × stable
//	threshold = Period / (2 × stable)
//	max       = threshold + 2 × Period / (stable + cold)
//	slope     = (cold − stable) / (max − threshold)
//
// A permit that is not stored, or below the threshold, costs stable. With a of them above the threshold, k of these
// cost k × (p(a) + p(a−k)) / 2, where p(x) = stable + x × slope. While the key is free, stored permits come back
// evenly: all of them in a Period. To empty a cold key takes 1.5 × Period, in any portions.
//
//   - Locks: a grant locks the row. A denial locks nothing, unless another call was granted
//     tokens between the read and the lock.
//   - Rows: one per key that took tokens since it was last cold and swept.
//   - Good at: sparing what stands behind it after a pause, with Wait and Reserve.
//   - Bad at: bursts of several requests: between two of them passes the time that the first one costs.
//
// Decision.Remaining is a burst if the key is free, else none. Requests that take Ahead are served in order, each
// when the one before it is paid for. A refund of the last grant gives back all that it cost; of a part of it,
// Limit.Token for each token; of an earlier grant nothing while others are behind it, nor later if it cost more than
// a warm key's; and nothing of a part of a reservation that had to wait. The key stays as warm as if they had been
// used.
//
// What was granted is paid for under the limit of then, as with Guava: a larger limit helps those who come next. If
// the limit changes, the key keeps the share of stored permits that it has. So it does if the Period changes.
//
// The zero value is ready to use, concurrently.
type WarmUp struct {
	stored[WarmUp]

	// Period in which a key that is free gets cold, at most 24 h. A cold one that is in constant use is warm after it.
	// Zero: 10 s.
	Period time.Duration

	// ColdFactor is how many times as long a token takes when the key is cold, from 1 to 1,000. Zero: 3.
	ColdFactor float64
}

var _ Strategy = WarmUp{}

const (
	defaultWarmUp     = 10 * time.Second
	maxWarmUp         = 24 * time.Hour
	defaultColdFactor = 3
	maxColdFactor     = 1000
)

var (
	warmUpTable    = rows.NewTable("warm_up")
	warmUpTake     = statement("warm_up/take.sql")
	warmUpStep     = statement("warm_up/step.sql")
	warmUpGiveBack = statement("warm_up/give_back.sql")
)

func (WarmUp) table() *rows.Table { return warmUpTable }

// Check takes any limit without a Calendar, and requests Ahead.
func (s WarmUp) Check(r *rate.Request) error {
	switch {
	case s.Period < 0 || s.Period > maxWarmUp:
		return fmt.Errorf("strategies: WarmUp.Period is %v: it must be longer than zero and at most %v, or 0 for %v", s.Period, maxWarmUp, defaultWarmUp)
	case s.ColdFactor != 0 && !(s.ColdFactor >= 1 && s.ColdFactor <= maxColdFactor): // NaN, too
		return fmt.Errorf("strategies: WarmUp.ColdFactor is %v: it must be from 1 to %v, or 0 for %v", s.ColdFactor, maxColdFactor, defaultColdFactor)
	}
	but := *r
	but.Ahead = 0
	return rate.Unsupported(s.Name(), &but)
}

// Rule is that of a key that warms up.
func (s WarmUp) Rule() rate.Rule { return s.rule() }

func (s WarmUp) rule() warmup.Rule {
	return warmup.Rule{Period: cmp.Or(s.Period, defaultWarmUp), Factor: cmp.Or(s.ColdFactor, defaultColdFactor)}
}

// Take decides in one round trip.
func (s WarmUp) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return postgres.Each(ctx, session, s, requests, s.one)
}

func (s WarmUp) one(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var row warmup.Row
	if r.Tokens == 0 {
		return rows.Peek(ctx, session, r, warmUpTable.Look, &row)
	}
	rule := s.rule()
	terms := rule.Terms(r.Limit)
	args := []any{
		r.Key, r.Limiter, int64(r.Limit.Token()), r.Limit.Burst, r.Tokens, r.Unit, int64(r.Ahead),
		int64(rule.Period), terms.Threshold, terms.Most, terms.Slope, how.Relaxed, how.Patience,
	}
	return rows.Take(ctx, session, r, warmUpTake, args, &row, func() []rate.Statement {
		return how.Statements(rate.Statement{SQL: warmUpStep, Args: []any{r.Key, r.Limiter}})
	})
}

// GiveBack gives back the last grant, or a part of it, with one update for each refund.
func (s WarmUp) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, s, refunds, warmUpGiveBack, func(r rate.Refund, relaxed bool) []any {
		return []any{r.Key, r.Limiter, int64(r.Limit.Token()), r.Limit.Burst, r.Tokens, r.At.UnixNano(), int64(r.Delay), relaxed}
	})
}
