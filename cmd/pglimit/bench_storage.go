package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
)

// makeUnlogged makes the tables unlogged on a throwaway server. A database that the user named must have unlogged
// tables already, because they are emptied by a crash, for everybody.
func (a *app) makeUnlogged(ctx context.Context, place benchPlace, all []pglimit.Strategy) error {
	pool, err := pgxpool.NewWithConfig(ctx, place.own.Copy())
	if err != nil {
		return err
	}
	defer pool.Close()
	if place.remove != nil {
		return migrations.SetStorage(ctx, pool, migrations.Unlogged)
	}
	tables, err := migrations.ReadStorage(ctx, pool)
	if err != nil {
		return err
	}
	for _, s := range all {
		for _, t := range tables {
			if t.Table == "pglimit."+s.Name() && t.Storage != migrations.Unlogged {
				return fmt.Errorf(`--unlogged: %s is %s in %s, and bench does not change that: run "pglimit storage unlogged" there, or name no database`,
					t.Table, t.Storage, place.source)
			}
		}
	}
	return nil
}
