package strategies

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	//go:embed sql/buckets/look.sql
	lookFile string
	//go:embed sql/buckets/step.sql
	stepFile string
	//go:embed sql/buckets/give_back.sql
	giveBackFile string
	//go:embed sql/any/reset.sql
	resetFile string
	//go:embed sql/buckets/sweep.sql
	sweepBucketsFile string
)

// table is what strategies do with their rows apart from deciding.
type table struct {
	look, step, giveBack, reset, sweep string // statements
}

func newTable(name, sweepFile string) table {
	leases, fullNS, leasedNS := "", "full_ns", "0::bigint"
	if name == "token_bucket" { // a lease that nobody settled counts as spent when it expires
		leases = ", coalesce(b.leased_ns, 0::bigint), coalesce(b.until_ns, 0::bigint)"
		fullNS = "case when leased_ns > 0::bigint then greatest(full_ns, until_ns) else full_ns end"
		leasedNS = "coalesce(leased_ns, 0::bigint)"
	}
	fill := strings.NewReplacer("$leases", leases, "$full_ns", fullNS, "$leased_ns", leasedNS).Replace
	return table{
		look:     fill(statement(lookFile, name)),
		step:     statement(stepFile, name),
		giveBack: statement(giveBackFile, name),
		reset:    statement(resetFile, name),
		sweep:    fill(statement(sweepFile, name)),
	}
}

// peek looks at a bucket.
func (t table) peek(ctx context.Context, session rate.Session, r *rate.Request) (rate.Decision, error) {
	var nowNS int64
	var b bucket
	fields := append([]any{&nowNS}, b.fields()...)
	if strings.Contains(t.look, "leased_ns") {
		fields = append(fields, &b.leasedNS, &b.untilNS)
	}
	if err := session.Row(ctx, t.look, []any{r.Key, r.Limiter}, fields...); err != nil {
		return rate.Decision{}, err
	}
	return b.decision(r, nowNS, 0), nil
}

func (t table) resetKey(ctx context.Context, session rate.Session, limiter, key string) error {
	// Peeking validates the names, and nothing else that matters here.
	if err := (rate.Request{Limiter: limiter, Key: key, Limit: rate.PerSecond(1)}).Validate(); err != nil {
		return err
	}
	if _, err := session.Exec(ctx, t.reset, key, limiter); err != nil {
		return explain(err)
	}
	return nil
}

// rowsPerPage is about how many rows lie in a page that is half full: it turns
// the number of rows of a batch into pages, by which the sweep walks.
const rowsPerPage = 40

// lastPage is what a ctid can name. No table is as long.
const lastPage = 1<<32 - 1

func (t table) sweepBatch(ctx context.Context, session rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	if from < 0 || limit < 1 {
		return rate.Swept{}, fmt.Errorf("pglimit: Sweep from %d with a limit of %d: from must be a Cursor of another Sweep or 0, limit at least 1", from, limit)
	}
	pages := max(1, limit/rowsPerPage)
	swept := rate.Swept{Next: min(min(from, lastPage)+rate.Cursor(min(pages, lastPage)), lastPage)}
	err := session.Row(ctx, t.sweep, []any{int64(from), int64(swept.Next), session.Autocommits()}, &swept.Removed, &swept.Done, nil)
	if err != nil {
		return rate.Swept{}, explain(err)
	}
	return swept, nil
}
