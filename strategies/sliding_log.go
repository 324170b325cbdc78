package strategies

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// SlidingLog never grants more than N tokens in any window, as [SlidingWindow], and denies only if so many were
// granted in the last one: it remembers each grant. N is Limit.Burst, at most 1,000, and the window is Limit.Window.
// With at most 2 in 10 s, of requests at 0, 1, 9 and 10 s the third is denied.
//
//   - Locks: a grant locks the row. A denial locks nothing, unless another call took
//     the tokens between the read and the lock, or CountDenied is set.
//   - Rows: one per key that took tokens since it was last full and swept, of 24 bytes for each grant in the window, and each denial that counts.
//   - Good at: small limits that are to be exact both ways.
//   - Bad at: large limits. Each grant writes the whole row anew: [SlidingWindow] needs less.
//
// A change of the limit is as with SlidingWindow. The zero value is ready to use, concurrently. All callers of a
// limiter should have the same fields.
type SlidingLog struct {
	stored[SlidingLog]

	// CountDenied counts a denied request as if it had been granted: a caller who does not stop asking gets nothing,
	// until it has asked for less than the limit in a window. Of several units, those that are not granted are
	// counted as denied.
	//
	// A denial then costs what a grant does: it locks the row, writes it, and is not answered from memory. In a
	// transaction of the caller's it counts if that commits. Denials without a decision of Postgres's do not count.
	// They cannot be given back. Of those for more than N tokens only the newest are kept, which deny for as long as
	// all would: a flood does not make the row longer than that. If N is raised, or the window made longer, the
	// others are forgotten. With an N of 1,000 such a denial takes some 10 ms; with 10, what a grant takes.
	CountDenied bool

	// MinInterval between two grants: with 2 s, requests at 0, 1 and 3 s are granted, denied and granted. With
	// CountDenied, it is between a grant and the request before, granted or not. At most [rate.MaxWindow]; it may be
	// longer than the window. Zero: none.
	//
	// One decision then grants one Unit of a request at most. Decision.Remaining is what is left of the window, though
	// nothing of it is granted before RetryAfter.
	MinInterval time.Duration
}

var _ Strategy = SlidingLog{}

// maxLog is the largest N of a SlidingLog.
const maxLog = 1000

// A row has N grants and N denials, and what is left of those under other limits.
var slidingLogStatements = newWindowStatements("sliding_log", 3*maxLog)

func (SlidingLog) table() *rows.Table { return slidingLogStatements.Table }

// Check takes limits with a burst of at most 1,000.
func (s SlidingLog) Check(r *rate.Request) error {
	if s.MinInterval < 0 || s.MinInterval > rate.MaxWindow {
		return fmt.Errorf("strategies: SlidingLog.MinInterval is %v: it must be from 0 to %v", s.MinInterval, rate.MaxWindow)
	}
	if err := rate.Unsupported(s.Name(), r); err != nil {
		return err
	}
	if r.Limit.Burst > maxLog {
		return &rate.LimitError{Limit: r.Limit, Field: "Burst", Why: fmt.Sprintf("is %d: sliding_log remembers each grant, at most %d of them (use sliding_window)", r.Limit.Burst, maxLog)}
	}
	return nil
}

// Rule is that of a window without cells.
func (s SlidingLog) Rule() rate.Rule { return s.rule() }

func (s SlidingLog) rule() window.Rule {
	return window.Rule{MinInterval: s.MinInterval, CountDenied: s.CountDenied}
}

// Take decides in one round trip.
func (s SlidingLog) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return postgres.Each(ctx, session, s, requests, slidingLogStatements.by(s.rule(), func(r *rate.Request, how postgres.Manner) []any {
		return []any{r.Key, r.Limiter, r.Limit.Burst, int64(r.Limit.Window()), r.Tokens, r.Unit, how.Relaxed, how.Patience, int64(s.MinInterval), s.CountDenied}
	}))
}

// GiveBack takes tokens off the grant, with one update for each refund.
func (s SlidingLog) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return slidingLogStatements.refund(ctx, session, s, s.rule(), refunds)
}
