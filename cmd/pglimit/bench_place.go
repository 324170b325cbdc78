package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
)

// benchPlace is where a bench runs.
type benchPlace struct {
	bench.Place
	remove func() error // nil: the place is the user's
}

// findBenchPlace returns the database that the user named and agrees to load, or else a migrated throwaway server. The
// caller must call leave, also after an error.
func (a *app) findBenchPlace(ctx context.Context, connections int, b *benchFlags) (place benchPlace, err error) {
	if a.namesServer() {
		_, source := a.connString()
		if b.unlogged {
			return place, fmt.Errorf(`--unlogged is for a throwaway, and %s is set: "pglimit storage unlogged" changes the tables of that database`, source)
		}
		own, err := a.poolConfig()
		if err != nil {
			return place, err
		}
		what, err := mayLoad(own.ConnConfig, source, b.yes)
		if err != nil {
			return place, err
		}
		pool, err := a.pool(ctx) // its error says well why a server cannot be reached
		if err != nil {
			return place, err
		}
		pool.Close()
		a.say("the load is for " + what)
		place.Place = bench.Place{Database: a.loadConfig(own), Source: "the database of " + source}
		return place, nil
	}
	a.say("no database is named (--database-url, DATABASE_URL, PGHOST, PGDATABASE, PGSERVICE): starting a throwaway Postgres")
	// Postgres's defaults, except for room for our connections and the reserved ones.
	settings := map[string]string{"max_connections": strconv.Itoa(max(100, connections+20))}
	server, err := pgserver.Start(ctx, pgserver.Options{From: b.sources(), Settings: settings, Notice: a.say})
	if err != nil {
		return place, fmt.Errorf("%w, or name a database with --database-url", err)
	}
	a.say("started " + server.Describe())
	place = benchPlace{Place: bench.Place{Source: server.Describe()}, remove: server.Stop}
	place.Database, err = migrated(ctx, server.URL("postgres"), b.unlogged)
	return place, err
}

// loadConfig returns own with the mode that a service would have, pgx's default, unless
// the user names one.
func (a *app) loadConfig(own *pgxpool.Config) *pgxpool.Config {
	load := own.Copy()
	if conn, _ := a.connString(); !namesExecMode(conn) {
		load.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}
	return load
}

// leave removes a throwaway server. A failure becomes the command's error, or is added to it.
func (a *app) leave(place benchPlace, err *error) {
	if place.remove == nil {
		return
	}
	failed := place.remove()
	switch {
	case failed == nil:
		a.say("removed the throwaway Postgres")
	case *err == nil:
		*err = fmt.Errorf("cannot remove the throwaway Postgres: %w", failed)
	default:
		a.say("cannot remove the throwaway Postgres: " + oneLine(failed))
	}
}

// namesServer says whether the user named a database to bench. PGUSER and PGPORT alone do not count: many people have
// them in their profile, and the load must not go to whatever server runs on this machine.
func (a *app) namesServer() bool {
	if a.databaseURL != "" {
		return true
	}
	return slices.ContainsFunc([]string{"DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"}, func(name string) bool {
		return os.Getenv(name) != ""
	})
}

// migrated migrates the database at the URL and returns its configuration. If contrib is not installed, it leaves out
// exclusion_range, as [bench.Config.SkipMissing] does.
func migrated(ctx context.Context, url string, unlogged bool) (*pgxpool.Config, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil && !errors.Is(err, migrations.ErrBtreeGist) {
		return nil, err
	}
	if unlogged {
		return pool.Config(), migrations.SetStorage(ctx, pool, migrations.Unlogged)
	}
	return pool.Config(), nil
}
