package strategies

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
)

// ExclusionRange records each grant as a range of time, and an exclusion constraint
// lets no two ranges of a key overlap: the rule is the schema's, and no program
// can break it.
//
//   - Locks: a grant locks no row but its new index entry, until the commit. A denial
//     locks nothing.
//   - Rows: one per grant, which a sweep removes after the range has ended. Run the
//     cleanup: at 1,000 grants a second, an hour without it leaves 3.6 million rows.
//   - Good at: a rule that holds whatever else writes to the table.
//   - Bad at: bursts, which it refuses (Burst must be 1, so it grants one token at a
//     time), and the size of its index.
//
// It is the second design of the write-up. ON CONFLICT DO NOTHING makes the insert check
// before it writes. A plain insert writes first, waits for the other inserts that did the
// same, and deadlocks with them. A changed limit counts from the next grant on; the range
// of the last grant stays as it was.
//
// It needs the extension btree_gist. The zero value is ready to use, concurrently.
type ExclusionRange struct{ stored[ExclusionRange] }

var _ Strategy = ExclusionRange{}

var (
	exclusionRangeTable = rows.NewTable("exclusion_range")
	exclusionRangeTake  = statement("exclusion_range/take.sql")
	exclusionRangeLook  = statement("exclusion_range/look.sql")
	exclusionRangeStep  = statement("exclusion_range/step.sql")
	giveBackRange       = statement("exclusion_range/give_back.sql")
)

func (ExclusionRange) table() *rows.Table { return exclusionRangeTable }

// Check takes limits with a burst of 1.
func (s ExclusionRange) Check(r *rate.Request) error {
	if err := rate.Unsupported(s.Name(), r); err != nil {
		return err
	}
	if burst := r.Limit.Burst; burst != 1 {
		return &rate.LimitError{
			Limit: r.Limit,
			Field: "Burst",
			Why:   fmt.Sprintf("is %d: exclusion_range keeps a burst of 1 only (use a burst of 1, or another strategy)", burst),
		}
	}
	return nil
}

// Rule is that of a token bucket.
func (ExclusionRange) Rule() rate.Rule { return bucket.Rule{} }

// Take decides in one round trip.
func (s ExclusionRange) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return postgres.Each(ctx, session, s, requests, insertRange)
}

// lastRange is the last range of a bucket that has not ended.
type lastRange struct {
	sinceNS, untilNS int64
	hasRow           bool // a range, perhaps one that has ended
}

func (l *lastRange) Fields() []any { return []any{&l.sinceNS, &l.untilNS, &l.hasRow} }

func (l *lastRange) Ahead(nowNS int64) bool { return l.sinceNS-nowNS > bucket.StepNS }

// Decision of a range that is ahead is as if that began now.
func (l *lastRange) Decision(r *rate.Request, nowNS, granted int64) rate.Decision {
	d := rate.Decision{Granted: granted, HasRow: l.hasRow, At: time.Unix(0, nowNS).UTC()}
	wait := l.untilNS - nowNS
	if l.Ahead(nowNS) {
		wait = l.untilNS - l.sinceNS
	}
	if wait > 0 {
		d.RetryAfter, d.ResetAfter = time.Duration(wait), time.Duration(wait)
	} else {
		d.Remaining = 1
	}
	d.Allowed = granted > 0 || r.Tokens == 0 && d.Remaining == 1
	return d
}

// insertRange takes the one token that a bucket has, even if the request wants more.
func insertRange(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var last lastRange
	if r.Tokens == 0 {
		return rows.Peek(ctx, session, r, exclusionRangeLook, &last)
	}
	// Postgres stores times in microseconds. Rounded up, the rate is never exceeded.
	interval := (r.Limit.Token() + time.Microsecond - 1).Truncate(time.Microsecond)
	args := []any{r.Key, r.Limiter, interval.Nanoseconds(), how.Relaxed, how.Patience}
	return rows.Take(ctx, session, r, exclusionRangeTake, args, &last, func() []rate.Statement {
		return how.Statements(rate.Statement{SQL: exclusionRangeStep, Args: []any{r.Key, r.Limiter}})
	})
}

// GiveBack removes the range of the grant.
func (s ExclusionRange) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, s, refunds, giveBackRange, func(r rate.Refund, relaxed bool) []any {
		return []any{r.Key, r.Limiter, r.At.UnixNano(), relaxed}
	})
}
