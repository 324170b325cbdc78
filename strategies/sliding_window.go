package strategies

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/rows"
	"github.com/pglimit/ratelimit/strategies/internal/window"
)

// SlidingWindow never grants more than N tokens in any window: with PerMinute(100), never more than 100 in any span of
// a minute, wherever it begins. (A token bucket of that limit grants up to 199: a full bucket, and what comes back
// meanwhile.) N is Limit.Burst, and the window is Limit.Window: the time in which so many tokens come back. With
// PerMinute(100).WithBurst(10) that is never more than 10 in any 6 s.
//
// The window consists of cells. What was granted in a cell counts whole, until the last of it is a window old. So the
// count is never too low, and may be too high by one cell: a steady flow gets n/(n+1) of the limit, 50 % with one
// cell, 86 % with 6, 91 % with 10, 98 % with 60. All at once gets all of it, with any number of cells.
//
//   - Locks: a grant locks the row. A denial locks nothing, unless another call took
//     the tokens between the read and the lock.
//   - Rows: one per key that took tokens since it was last full and swept, of 24 bytes for each cell.
//   - Good at: contracts that say "never more than".
//   - Bad at: a smooth flow. After a burst, all of it comes back at once.
//
// If the limit changes, what was used stays used: until it is as old as the shorter of the old window and the new one.
// While two limits are in force, never more than the larger N is granted in any window of the shorter length.
//
// The zero value is ready to use, concurrently.
type SlidingWindow struct {
	stored[SlidingWindow]

	// Cells of a window, at most 100. Zero: 10. More cells grant a steady flow more of the limit, and make the row
	// longer.
	Cells int
}

var _ Strategy = SlidingWindow{}

const (
	defaultCells = 10
	maxCells     = 100
)

var slidingWindowStatements = newWindowStatements("sliding_window", 250)

func (SlidingWindow) table() *rows.Table { return slidingWindowStatements.Table }

// Check takes any limit without a Calendar.
func (s SlidingWindow) Check(r *rate.Request) error {
	if s.Cells < 0 || s.Cells > maxCells {
		return fmt.Errorf("strategies: SlidingWindow.Cells is %d: it must be from 1 to %d, or 0 for %d", s.Cells, maxCells, defaultCells)
	}
	return rate.Unsupported(s.Name(), r)
}

// Rule is that of a window.
func (s SlidingWindow) Rule() rate.Rule { return s.rule() }

func (s SlidingWindow) rule() window.Rule { return window.Rule{Cells: cmp.Or(s.Cells, defaultCells)} }

// Take decides in one round trip.
func (s SlidingWindow) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	rule := s.rule()
	return postgres.Each(ctx, session, s, requests, slidingWindowStatements.by(rule, func(r *rate.Request, how postgres.Manner) []any {
		return []any{r.Key, r.Limiter, r.Limit.Burst, int64(r.Limit.Window()), rule.Cell(r.Limit.Window()), r.Tokens, r.Unit, how.Relaxed, how.Patience}
	}))
}

// GiveBack gives tokens back to the cell that they were granted in, with one update for each refund.
func (s SlidingWindow) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return slidingWindowStatements.refund(ctx, session, s, s.rule(), refunds)
}

// windowStatements are those of one table of windows.
type windowStatements struct {
	*rows.Table
	take, look, settle, giveBack string
}

// newWindowStatements are those of a table with so many cells in a row at most, before settle joins them.
func newWindowStatements(table string, most int) windowStatements {
	statement := func(path string) string {
		return strings.ReplaceAll(postgres.StatementOf(files, path, table), "$most", strconv.Itoa(most))
	}
	return windowStatements{
		rows.NewTable(table), statement(table + "/take.sql"), statement("sliding_window/look.sql"), statement("sliding_window/settle.sql"), statement("sliding_window/give_back.sql"),
	}
}

// windowRow is a row, and the rule that reads it.
type windowRow struct {
	window.Row
	rule window.Rule
}

func (w *windowRow) Decision(r *rate.Request, nowNS, granted int64) rate.Decision {
	return w.rule.Decision(&w.Row, r, nowNS, granted)
}

// by returns what decides one request by that rule, with those arguments of the statement that takes.
func (s *windowStatements) by(rule window.Rule, args func(*rate.Request, postgres.Manner) []any) postgres.One {
	return func(ctx context.Context, session rate.Session, r *rate.Request, how postgres.Manner) (rate.Decision, error) {
		row := windowRow{rule: rule}
		if r.Tokens == 0 {
			return rows.Peek(ctx, session, r, s.look, &row)
		}
		return rows.Take(ctx, session, r, s.take, args(r, how), &row, func() []rate.Statement {
			return how.Uncompiled(rate.Statement{SQL: s.settle, Args: []any{r.Key, r.Limiter}})
		})
	}
}

func (s *windowStatements) refund(ctx context.Context, session rate.Session, strategy rate.Strategy, rule window.Rule, refunds []rate.Refund) error {
	return rows.GiveBack(ctx, session, strategy, refunds, s.giveBack, func(r rate.Refund, relaxed bool) []any {
		return []any{r.Key, r.Limiter, int64(r.Limit.Window()), rule.Cell(r.Limit.Window()), r.Tokens, r.At.UnixNano(), relaxed, "pglimit." + s.Name}
	})
}
