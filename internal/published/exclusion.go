package published

import (
	"context"
	_ "embed"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Exclusion is the second statement: a plain insert; a violation of the constraint is a denial.
// A deadlock is an error, because nobody knows whether the request was due.
type Exclusion struct {
	table
	insert string
}

var _ rate.Strategy = Exclusion{}

//go:embed exclusion.sql
var exclusionFile string

// NewExclusion works on the tables that [Create] made in the schema.
func NewExclusion(schema string) Exclusion {
	return Exclusion{table{schema, "exclusion"}, statement(exclusionFile, schema)}
}

// Take decides in one round trip.
func (s Exclusion) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	return s.takeEach(requests, func(r rate.Request, intervalUS int64) (granted bool, d rate.Decision, err error) {
		d.At, granted, err = scanTime(ctx, session, s.insert, r.Key, intervalUS)
		if postgres.Is(err, exclusionViolation) {
			err = nil
		}
		return granted, d, err
	})
}
