package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// connectTimeout limits one attempt to connect, unless the connection string has a connect_timeout: a shell script
// should not hang.
const connectTimeout = 5 * time.Second

// pool connects to the database that the user named, so that an unreachable server is reported at once. The caller
// closes the pool.
func (a *app) pool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := a.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		pool.Close()
		return nil, explainConnect(ctx, err)
	}
	conn.Release()
	return pool, nil
}

// within connects and calls do, both within --timeout and what do may wait besides; 0 waits forever. unanswered is what
// an error adds if the database was asked, and has not answered by then.
func (a *app) within(
	ctx context.Context, timeout, wait time.Duration, unanswered string, do func(context.Context, *pgxpool.Pool) error,
) error {
	name := fmt.Sprintf("--timeout %v", timeout)
	switch {
	case timeout < 0:
		return fmt.Errorf("--timeout is %v: it must not be negative", timeout)
	case wait > 0:
		name += fmt.Sprintf(" and --wait %v together", wait)
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+wait)
		defer cancel()
	}
	late := func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	pool, err := a.pool(ctx)
	if late(err) {
		return fmt.Errorf("no connection to PostgreSQL within %s", name)
	} else if err != nil {
		return err
	}
	defer pool.Close()
	if err := do(ctx, pool); late(err) {
		return fmt.Errorf("no answer within %s%s", name, unanswered)
	} else if err != nil {
		return err
	}
	return nil
}

// poolConfig returns the configuration of [app.pool], for a command that needs its own pools.
//
// Statements are sent unprepared, unless the user names another mode. A command that makes one request gains nothing by
// preparing, and a prepared statement that it leaves on a connection of PgBouncer makes the next command fail.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	conn, source := a.connString()
	if source == "" {
		return nil, errors.New("no database is named: use --database-url, or set DATABASE_URL or the PG* variables " +
			"(PGHOST, PGDATABASE, PGSERVICE, ...)")
	}
	if address := os.Getenv("PGHOSTADDR"); address != "" {
		return nil, fmt.Errorf("PGHOSTADDR is %s, to which psql connects whatever else names a host, and pglimit "+
			"does not: unset it, and name that address as the host, as in PGHOST", address)
	}
	config, err := pgxpool.ParseConfig(conn)
	if err != nil {
		return nil, explainConnString(conn, source, err)
	}
	if err := checkParts(conn, source, &config.ConnConfig.Config); err != nil {
		return nil, err
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if !namesExecMode(conn) {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "pglimit"
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // all text here is UTF-8, whatever the role's setting
	return config, nil
}

// namesExecMode says whether the connection string, or its service, sets pgx's default_query_exec_mode. pgconn does not
// know this parameter, and treats it as a setting of the server.
func namesExecMode(conn string) bool {
	config, err := pgconn.ParseConfig(conn)
	return err == nil && config.RuntimeParams["default_query_exec_mode"] != ""
}

// connString returns the connection string and its source. An empty source means that there is none; an empty string
// with a source means that the driver reads the PG* variables.
func (a *app) connString() (conn, source string) {
	if a.databaseURL != "" {
		return a.databaseURL, "--database-url"
	}
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return url, "DATABASE_URL"
	}
	for _, name := range []string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"} {
		if os.Getenv(name) != "" {
			return "", name
		}
	}
	return "", ""
}
