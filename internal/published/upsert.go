package published

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/pglimit"
)

// Upsert is the third statement: one INSERT that updates only if the interval has
// passed.
type Upsert struct {
	table
	upsert string
}

var _ pglimit.Strategy = Upsert{}

//go:embed upsert.sql
var upsertFile string

// NewUpsert works on the tables that [Create] made in the schema.
func NewUpsert(schema string) Upsert {
	return Upsert{table{schema, "upsert"}, statement(upsertFile, schema)}
}

// Take decides in one round trip.
func (s Upsert) Take(ctx context.Context, db pglimit.DB, requests []pglimit.Request) ([]pglimit.Decision, error) {
	return s.takeEach(requests, func(r pglimit.Request, intervalUS int64) (granted bool, d pglimit.Decision, err error) {
		d.At, granted, err = scanTime(db.QueryRow(ctx, s.upsert, r.Key, intervalUS))
		return granted, d, err
	})
}
