// Package rows has everything that strategies do with their rows except deciding: look, step,
// give back, reset and sweep.
package rows

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/internal/bucket"
	"github.com/pglimit/ratelimit/strategies/internal/call"
)

var (
	//go:embed sql/look.sql
	lookFile string
	//go:embed sql/step.sql
	stepFile string
	//go:embed sql/give_back.sql
	giveBackFile string
	//go:embed sql/reset.sql
	resetFile string
	//go:embed sql/sweep.sql
	sweepFile string
)

// Table is the table of one strategy, with the statements for it.
type Table struct {
	name string

	// Look reads the row of one bucket. Step corrects that row after the clock stepped back.
	Look, Step string

	giveBack, reset, sweep string
}

// NewTable returns the table of that name. sweep is the statement that sweeps it; if empty,
// the statement for buckets.
func NewTable(name, sweep string) Table {
	leases, fullNS, leasedNS := "", "full_ns", "0::bigint"
	if name == "token_bucket" { // an unsettled lease counts as spent when it expires
		leases = ", coalesce(b.leased_ns, 0::bigint), coalesce(b.until_ns, 0::bigint)"
		fullNS = "case when leased_ns > 0::bigint then greatest(full_ns, until_ns) else full_ns end"
		leasedNS = "coalesce(leased_ns, 0::bigint)"
	}
	fill := strings.NewReplacer("$leases", leases, "$full_ns", fullNS, "$leased_ns", leasedNS).Replace
	return Table{
		name:     name,
		Step:     call.Statement(stepFile, name),
		giveBack: call.Statement(giveBackFile, name),
		Look:     fill(call.Statement(lookFile, name)),
		reset:    call.Statement(resetFile, name),
		sweep:    fill(call.Statement(cmp.Or(sweep, sweepFile), name)),
	}
}

// Peek looks at a bucket.
func (t Table) Peek(ctx context.Context, session rate.Session, r *rate.Request) (rate.Decision, error) {
	var nowNS int64
	var b bucket.Bucket
	fields := append([]any{&nowNS}, b.Fields()...)
	if strings.Contains(t.Look, "leased_ns") {
		fields = append(fields, &b.LeasedNS, &b.UntilNS)
	}
	if err := session.Row(ctx, t.Look, []any{r.Key, r.Limiter}, fields...); err != nil {
		return rate.Decision{}, err
	}
	return b.Decision(r, nowNS, 0), nil
}

// Reset fills a bucket.
func (t Table) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	// Only the names need validation: the limit is a placeholder.
	if err := (rate.Request{Limiter: limiter, Key: key, Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return err
	}
	if _, err := session.Exec(ctx, t.reset, key, limiter); err != nil {
		return call.Explain(err)
	}
	return nil
}

// rowsPerPage is about how many rows lie in a page that is half full. The sweep walks by
// pages, so it divides the number of rows of a batch by this.
const rowsPerPage = 40

// lastPage is the highest page number that fits a ctid. No table is as long.
const lastPage = 1<<32 - 1

// Sweep sweeps some pages of the table, about limit rows.
func (t Table) Sweep(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	if from < 0 || limit < 1 {
		return rate.Swept{}, fmt.Errorf("pglimit: Sweep from %d with a limit of %d: from must be a Cursor of another Sweep or 0, limit at least 1", from, limit)
	}
	pages := max(1, limit/rowsPerPage)
	swept := rate.Swept{Next: min(min(from, lastPage)+rate.Cursor(min(pages, lastPage)), lastPage)}
	err := session.Row(ctx, t.sweep, []any{int64(from), int64(swept.Next), session.Autocommits()}, &swept.Removed, &swept.Done, nil)
	if err != nil {
		return rate.Swept{}, call.Explain(err)
	}
	return swept, nil
}
