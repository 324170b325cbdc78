package published

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Upsert is the third statement: one INSERT that updates only if the interval has
// passed.
type Upsert struct {
	table
	upsert string
}

var _ rate.Strategy = Upsert{}

//go:embed upsert.sql
var upsertFile string

// NewUpsert works on the tables that [Create] made in the schema.
func NewUpsert(schema string) Upsert {
	return Upsert{table{schema, "upsert"}, statement(upsertFile, schema)}
}

// Take decides in one round trip.
func (s Upsert) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return s.takeEach(requests, func(r rate.Request, intervalUS int64) (granted bool, d rate.Decision, err error) {
		d.At, granted, err = scanTime(ctx, session, s.upsert, r.Key, intervalUS)
		return granted, d, err
	})
}
