package strategies

import (
	"context"
	_ "embed"
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
//   - Round trips: one; one more each time another take was faster. Several requests in
//     one call go one by one through a transaction. In the caller's transaction, two more for a
//     savepoint.
//   - Rows: one per grant, which a sweep removes after the range has ended. Run the
//     cleanup: at 1,000 grants a second, an hour without it leaves 3.6 million rows.
//   - Good at: a rule that holds whatever else writes to the table.
//   - Bad at: bursts, which it refuses (Burst must be 1, so it grants one token at a
//     time), and the size of its index.
//
// It is the second design of the write-up. ON CONFLICT DO NOTHING makes the insert check
// before it writes. A plain insert writes first, waits for the other inserts that did the
// same, and deadlocks with them. A changed limit counts from the next grant on; the range
// of the last grant stays as it was. If a take waits longer than 100 ms for another one that
// is then rolled back, it is tried again, at most five times in all. After that it fails with
// ErrNothingTaken.
//
// It needs the extension btree_gist. The zero value is ready to use, concurrently.
type ExclusionRange struct{ stored[ExclusionRange] }

var _ Strategy = ExclusionRange{}

var (
	//go:embed sql/exclusion_range/take.sql
	exclusionRangeTakeFile string
	//go:embed sql/exclusion_range/look.sql
	exclusionRangeLookFile string
	//go:embed sql/exclusion_range/step.sql
	exclusionRangeStepFile string
	//go:embed sql/exclusion_range/give_back.sql
	giveBackRangeFile string

	exclusionRangeTable = rows.NewTable("exclusion_range")
	exclusionRangeTake  = postgres.Statement(exclusionRangeTakeFile, "exclusion_range")
	exclusionRangeLook  = postgres.Statement(exclusionRangeLookFile, "exclusion_range")
	exclusionRangeStep  = postgres.Statement(exclusionRangeStepFile, "exclusion_range")
	giveBackRange       = postgres.Statement(giveBackRangeFile, "exclusion_range")
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

// lastRange is the last range of a bucket that has not ended, and the clock when it was read.
type lastRange struct{ nowNS, sinceNS, untilNS int64 }

// stepped returns the range; if the clock has stepped back since it was written, moved so
// that it begins now.
func (l lastRange) stepped() lastRange {
	if by := l.sinceNS - l.nowNS; by > bucket.StepNS {
		l.sinceNS, l.untilNS = l.nowNS, l.untilNS-by
	}
	return l
}

func (l lastRange) decision(r *rate.Request, granted bool) rate.Decision {
	d := rate.Decision{HasRow: l.untilNS > 0, At: time.Unix(0, l.nowNS).UTC()}
	if wait := l.stepped().untilNS - l.nowNS; wait > 0 {
		d.RetryAfter, d.ResetAfter = time.Duration(wait), time.Duration(wait)
	} else {
		d.Remaining = 1
	}
	if granted {
		d.Granted = 1
	}
	d.Allowed = granted || r.Tokens == 0 && d.Remaining == 1
	return d
}

// insertRange takes the one token that a bucket has, even if the request wants more.
func insertRange(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
	var last lastRange
	if r.Tokens == 0 {
		var hasRow, hidden bool
		err := session.Row(ctx, exclusionRangeLook, []any{r.Key, r.Limiter}, &last.nowNS, &last.sinceNS, &last.untilNS, &hasRow, &hidden)
		if err == nil && hidden {
			err = postgres.ErrHidden
		}
		d := last.decision(r, false)
		d.HasRow = hasRow
		return d, err
	}
	// Postgres stores times in microseconds. Rounded up, the rate is never exceeded.
	interval := (r.Limit.Token() + time.Microsecond - 1).Truncate(time.Microsecond)
	for {
		var granted *bool
		err := session.Row(ctx, exclusionRangeTake, []any{r.Key, r.Limiter, interval.Nanoseconds(), how.Relaxed, how.Patience},
			&granted, &last.nowNS, &last.sinceNS, &last.untilNS, nil)
		switch {
		case err != nil:
			return rate.Decision{}, err
		case granted == nil:
			// Another take was faster. A new statement sees its range.
		case !*granted && last != last.stepped():
			step := rate.Statement{SQL: exclusionRangeStep, Args: []any{r.Key, r.Limiter}}
			if _, err := session.Pipeline(ctx, how.Statements(step)...); err != nil {
				return rate.Decision{}, err
			}
		default:
			return last.decision(r, *granted), nil
		}
	}
}

// GiveBack removes the range of the grant.
func (s ExclusionRange) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, s, refunds, giveBackRange, func(r rate.Refund, relaxed bool) []any {
		return []any{r.Key, r.Limiter, r.At.UnixNano(), relaxed}
	})
}
