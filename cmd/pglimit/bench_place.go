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
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// benchPlace is where a bench runs.
type benchPlace struct {
	database *pgxpool.Config // for the load
	own      *pgxpool.Config // for all other queries
	source   string          // names the database, in words
	loads    string          // and the user's, where it is
	remove   func() error    // nil: the place is the user's
}

// findBenchPlace returns the database that the user named and agrees to load, or else a migrated throwaway server. The
// caller must call leave, also after an error.
func (a *app) findBenchPlace(ctx context.Context, connections int, b *benchFlags) (place benchPlace, err error) {
	if a.namesServer() {
		_, source := a.connString()
		if place.own, err = a.poolConfig(); err != nil {
			return place, err
		}
		place.loads, err = a.mayLoad(ctx, place.own.ConnConfig, source, b.yes)
		if err != nil {
			return place, err
		}
		pool, err := a.pool(ctx) // its error says well why a server cannot be reached
		if err != nil {
			return place, err
		}
		pool.Close()
		place.source = "the database of " + source
		place.database = a.loadConfig(place.own)
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
	place = benchPlace{source: server.Describe(), remove: server.Stop}
	place.database, err = migrated(ctx, server.URL("postgres"))
	place.own = place.database
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
// exclusion_range: see [app.benchStrategies].
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

// benchStrategies returns the strategies that can run there. Without btree_gist it leaves out exclusion_range, or fails
// if the user named that. [bench.Run] reports a database that is not migrated at all.
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
	peek := rate.Request{Limiter: "bench", Key: "peek", Limit: pglimit.Every(time.Second), Unit: 1}
	_, err := s.Take(ctx, postgres.OnPool(pool), []rate.Request{peek})
	return errors.Is(err, pglimit.ErrNotMigrated)
}
