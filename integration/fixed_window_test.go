package integration

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
	"github.com/pglimit/ratelimit/strategies/strategytest"
)

// A strategy of somebody else, with a rule that is no token bucket: this file, a file of SQL, and its
// rows pass the same suite as ours.
func TestConformanceOfAnotherRule(t *testing.T) {
	t.Parallel()
	strategytest.Run(t, newWindows, fixedWindow{}, windows)
}

func newWindows(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := newMigrated(t)
	_, err := pool.Exec(t.Context(), `create table public.fixed_window (key text collate "C", limiter text collate "C",
		full_ns bigint not null, start_ns bigint not null, at_ns bigint not null, primary key (key, limiter))`)
	must(t, err)
	return pool
}

// fixedWindow grants Burst tokens in each window. Windows begin at the multiples of Period since 1970.
// A row has the start of the window of its last take, at, and full = start + used: a token costs a
// nanosecond.
type fixedWindow struct{}

//go:embed testdata/fixed_window/take.sql
var fixedWindowTake string

func (fixedWindow) Name() string { return "fixed_window" }

func (s fixedWindow) Check(r *rate.Request) error { return rate.Unsupported(s.Name(), r) }

func (fixedWindow) Rule() rate.Rule { return windowRule{} }

func (s fixedWindow) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := rate.ValidateCall(s, requests); err != nil || len(requests) == 0 {
		return nil, err
	}
	decisions := make([]rate.Decision, len(requests))
	order := make([]int, len(requests))
	relaxed, impatient := session.Autocommits(), false
	for i, r := range requests {
		order[i] = i
		relaxed = relaxed && r.Durability != rate.Durable
		impatient = impatient || r.Impatient || r.Key != requests[0].Key || r.Limiter != requests[0].Limiter
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(requests[a].Key, requests[b].Key), cmp.Compare(requests[a].Limiter, requests[b].Limiter))
	})
	var patience *string
	if impatient && session.Autocommits() {
		patience = new(string)
		*patience = "20ms"
	}
	all := func(session rate.Session) (err error) {
		for _, i := range order {
			if decisions[i], err = s.one(ctx, session, &requests[i], relaxed, patience); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	switch {
	case len(requests) == 1:
		err = all(session)
	case session.Autocommits():
		err = s.between(ctx, session, "begin isolation level read committed", "commit", "rollback", all)
	default:
		err = s.between(ctx, session, "savepoint fixed_window", "release savepoint fixed_window", "rollback to savepoint fixed_window; release savepoint fixed_window", all)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	return decisions, nil
}

func (fixedWindow) one(ctx context.Context, session rate.Session, r *rate.Request, relaxed bool, patience *string) (rate.Decision, error) {
	period := int64(r.Limit.Period)
	for {
		var granted *int64
		var nowNS, used int64
		var hasRow bool
		err := session.Row(ctx, fixedWindowTake, []any{r.Key, r.Limiter, period, r.Limit.Burst, r.Tokens, max(1, r.Unit), relaxed, patience}, &granted, &nowNS, &used, &hasRow, nil)
		if err != nil {
			return rate.Decision{}, err
		}
		if granted == nil { // another call changed the row
			continue
		}
		ends := time.Duration(period - nowNS%period)
		d := rate.Decision{Granted: *granted, Remaining: max(0, r.Limit.Burst-used), HasRow: hasRow, At: time.Unix(0, nowNS).UTC()}
		d.Allowed = d.Granted > 0 || r.Tokens == 0 && d.Remaining >= max(1, r.Unit)
		if used > 0 {
			d.ResetAfter = ends
		}
		if d.Remaining < max(1, r.Unit) {
			d.RetryAfter = ends
		}
		return d, nil
	}
}

func (fixedWindow) between(ctx context.Context, session rate.Session, open, keep, undo string, f func(rate.Session) error) error {
	return session.OneConnection(ctx, func(conn rate.Session) error {
		if _, err := conn.Exec(ctx, open); err != nil {
			return err
		}
		err := f(conn)
		if err == nil {
			_, err = conn.Exec(ctx, keep)
		}
		if err != nil {
			_, _ = conn.Exec(context.WithoutCancel(ctx), undo)
		}
		return err
	})
}

func (fixedWindow) explain(err error) error {
	pg := (*pgconn.PgError)(nil)
	switch {
	case !errors.As(err, &pg):
		return err
	case pg.Code == "55P03":
		return fmt.Errorf("%w: %w: %w", rate.ErrLocked, rate.ErrNothingTaken, err)
	case pg.Code == "57014" || slices.Contains([]string{"22", "23", "40"}, pg.Code[:2]):
		return fmt.Errorf("%w: %w", rate.ErrNothingTaken, err)
	}
	return err
}

// windowRule is that of a fixed window: a decision says all until its window ends, when the bucket is full.
type windowRule struct{}

func (windowRule) Later(d rate.Decision, _, n int64, passed time.Duration, more int64) rate.Decision {
	burst, period := d.Limit.Burst, d.Limit.Period
	ends := period - time.Duration(d.At.UnixNano()%int64(period)) - passed
	if ends <= 0 {
		d.Remaining, d.ResetAfter = burst, 0
	} else {
		d.Remaining = min(burst, d.Remaining+more)
		d.ResetAfter = ends
	}
	if d.Remaining == burst {
		d.ResetAfter = 0
	}
	d.RetryAfter = 0
	if d.Remaining < max(1, n) {
		d.RetryAfter = ends
	}
	d.At = d.At.Add(passed)
	return d
}

func (rule windowRule) Denies(d rate.Decision, unit, n int64, passed time.Duration) bool {
	return rule.Later(d, unit, n, passed, 0).RetryAfter > 0
}

// windows is what is to hold of fixed windows.
var windows = strategytest.Table{
	Rule:  windowRule{},
	Check: checkWindows,
	Rows: []strategytest.Row{
		{Name: "ANewWindowHasAllAtOnce", Parts: []strategytest.Part{{Limit: rate.Every(30 * time.Millisecond).WithBurst(5), Steps: slices.Repeat([]strategytest.Step{
			{At: strategytest.Eventually, Tokens: 5, Unit: 5, Granted: 5, Left: 0},
		}, 5)}}},
		{Name: "ARaisedLimit", Parts: []strategytest.Part{
			{Limit: rate.Every(1000 * time.Hour).WithBurst(5), Steps: []strategytest.Step{{Tokens: 5, Unit: 5, Granted: 5, Left: 0}}},
			{Limit: rate.Every(1000 * time.Hour).WithBurst(7), Steps: []strategytest.Step{{Tokens: 1, Unit: 1, Granted: 1, Left: 1}}},
		}},
	},
}

// checkWindows is a second opinion: it counts, and knows nothing of rows.
func checkWindows(limit rate.Limit, events []audit.Event) (report audit.Report) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b audit.Event) int { // grants first
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(b.Granted, a.Granted))
	})
	var start, used int64
	for _, e := range events {
		if now := e.At / int64(limit.Period) * int64(limit.Period); now > start {
			start, used = now, 0
		}
		used += e.Granted
		report.Granted += e.Granted
		if over := used - limit.Burst; over > report.Over.Tokens {
			report.Over = audit.Over{Tokens: over, Granted: used, From: time.Unix(0, start).UTC(), To: time.Unix(0, e.At).UTC()}
		}
		unit, free := max(1, e.Unit), limit.Burst-used
		if missed := e.Wanted - e.Granted; missed >= unit && free >= unit && !e.Contended {
			report.NotDue = append(report.NotDue, audit.Denial{At: time.Unix(0, e.At).UTC(), Unit: unit, Free: free})
			report.NotDueTotal++
		}
	}
	return report
}
