package strategies

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit"
)

var (
	//go:embed reset.sql
	resetFile string
	//go:embed sweep_buckets.sql
	sweepBucketsFile string
)

// table is what strategies do with their rows apart from deciding.
type table struct {
	reset, sweep, giveBack string // statements
}

func newTable(name, sweepFile string) table {
	fullUS, counted := "pglimit.full_us_v1(debt, at_us, refill_parts)", "true"
	if name == "token_bucket" { // a lease that nobody settled is taken when it expires
		fullUS = "pglimit.full_us_v1(debt + leased * token_parts, greatest(at_us, leased_until_us), refill_parts)"
		counted = "(b.leased = 0 or b.leased_until_us > now_us)"
	}
	return table{
		reset:    statement(resetFile, name),
		sweep:    strings.ReplaceAll(statement(sweepFile, name), "$full_us", fullUS),
		giveBack: strings.ReplaceAll(statement(giveBackFile, name), "$counted", counted),
	}
}

func (t table) resetKey(ctx context.Context, db pglimit.DB, limiter, key string) error {
	// Peeking validates the names, and nothing else that matters here.
	if err := (pglimit.Request{Limiter: limiter, Key: key, Limit: pglimit.PerSecond(1)}).Validate(); err != nil {
		return err
	}
	if _, err := db.Exec(ctx, t.reset, key, limiter); err != nil {
		return explain(err)
	}
	return nil
}

// rowsPerPage is about how many rows lie in a page that is half full: it turns
// the number of rows of a batch into pages, by which the sweep walks.
const rowsPerPage = 40

// lastPage is what a ctid can name. No table is as long.
const lastPage = 1<<32 - 1

func (t table) sweepBatch(ctx context.Context, db pglimit.DB, from pglimit.Cursor, limit int) (pglimit.Swept, error) {
	if from < 0 || limit < 1 {
		return pglimit.Swept{}, fmt.Errorf("pglimit: Sweep from %d with a limit of %d: from must be a Cursor of another Sweep or 0, limit at least 1", from, limit)
	}
	pages := max(1, limit/rowsPerPage)
	swept := pglimit.Swept{Next: min(min(from, lastPage)+pglimit.Cursor(min(pages, lastPage)), lastPage)}
	err := db.QueryRow(ctx, t.sweep, int64(from), int64(swept.Next), autocommits(db)).Scan(&swept.Removed, &swept.Done, nil)
	if err != nil {
		return pglimit.Swept{}, explain(err)
	}
	return swept, nil
}
