package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// benchPlace is where a bench runs.
type benchPlace struct {
	database *pgxpool.Config // for the load
	own      *pgxpool.Config // for what else we ask it
	source   string          // which one it is, in words
	remove   func() error    // nil: the place is the user's
}

// findBenchPlace is what the user named, or else a throwaway server, migrated. The caller
// leaves the place, also after an error.
func (a *app) findBenchPlace(ctx context.Context, connections int) (place benchPlace, err error) {
	if a.namesServer() {
		_, source := a.connString()
		pool, err := a.pool(ctx) // says well what is wrong if it cannot be reached
		if err != nil {
			return place, err
		}
		pool.Close()
		place.source = "the database of " + source
		if place.own, err = a.poolConfig(); err != nil {
			return place, err
		}
		place.database = a.loadConfig(place.own)
		return place, nil
	}
	a.say("no database is named (--database-url, DATABASE_URL, PGHOST, PGDATABASE, PGSERVICE): starting a throwaway Postgres")
	// Postgres's defaults, but for room for the connections, ours and reserved ones.
	settings := map[string]string{"max_connections": strconv.Itoa(max(100, connections+20))}
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: settings})
	if err != nil {
		return place, fmt.Errorf("no throwaway Postgres: %w (or name a database with --database-url)", err)
	}
	a.say("started " + server.Describe())
	place = benchPlace{source: server.Describe(), remove: server.Stop}
	place.database, err = migrated(ctx, server.URL("postgres"))
	place.own = place.database
	return place, err
}

// loadConfig is the configuration of own for the load: in the mode that a service would
// have, pgx's default, unless the user names one.
func (a *app) loadConfig(own *pgxpool.Config) *pgxpool.Config {
	load := own.Copy()
	if conn, _ := a.connString(); !namesExecMode(conn) {
		load.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}
	return load
}

// leave removes a throwaway server. That it could not is said whatever else happened:
// as the error of the command, or beside it.
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

// namesServer says whether the user named a database to bench. PGUSER and PGPORT
// alone do not: many have them in their profile, and the load is not for whatever
// server happens to run on this machine.
func (a *app) namesServer() bool {
	if a.databaseURL != "" {
		return true
	}
	return slices.ContainsFunc([]string{"DATABASE_URL", "PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"}, func(name string) bool {
		return os.Getenv(name) != ""
	})
}

// migrated database at the URL, if need be without exclusion_range: where contrib is
// not installed, see [app.benchStrategies].
func migrated(ctx context.Context, url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config.Copy())
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil && !errors.Is(err, migrations.ErrBtreeGist) {
		return nil, err
	}
	return config, nil
}

// benchStrategies are those that can run there: where the database does without
// btree_gist, all but exclusion_range, unless the user named it. A database that is not
// migrated at all is left to [bench.Run] to complain of.
func (a *app) benchStrategies(ctx context.Context, place benchPlace, all []pglimit.Strategy, named bool) ([]pglimit.Strategy, error) {
	isRange := func(s pglimit.Strategy) bool { return s.Name() == strategies.ExclusionRange{}.Name() }
	if !slices.ContainsFunc(all, isRange) {
		return all, nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, place.own.Copy())
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if !missing(ctx, pool, strategies.ExclusionRange{}) || missing(ctx, pool, strategies.TokenBucket{}) {
		return all, nil
	}
	const why = "exclusion_range is not in this database, it needs the extension btree_gist"
	if named {
		return nil, errors.New(why + `: leave it out of --strategies, or "create extension btree_gist" there and run "pglimit migrate up"`)
	}
	a.say(why + ": going on without it")
	return slices.DeleteFunc(slices.Clone(all), isRange), nil
}

// missing says that the database is not migrated for the strategy.
func missing(ctx context.Context, pool *pgxpool.Pool, s pglimit.Strategy) bool {
	peek := pglimit.Request{Limiter: "bench", Key: "peek", Limit: pglimit.Every(time.Second), Unit: 1}
	_, err := s.Take(ctx, rate.OnPool(pool), []pglimit.Request{peek})
	return errors.Is(err, pglimit.ErrNotMigrated)
}
