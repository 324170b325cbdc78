package bench

import (
	"context"
	"runtime"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Place is where a bench runs: a database that is migrated.
type Place struct {
	Database *pgxpool.Config
	Source   string // names it, in words
}

// settings that matter to what is measured.
var settings = []string{
	"shared_buffers", "synchronous_commit", "fsync", "full_page_writes", "wal_level", "max_connections",
	"commit_delay", "autovacuum", "jit", "shared_preload_libraries", "default_transaction_isolation", "ssl",
}

// describeServer asks the server what it is.
func describeServer(ctx context.Context, observer *pgxpool.Pool, source string) (result.Server, error) {
	server := result.Server{Source: source, Settings: map[string]string{}}
	if err := observer.QueryRow(ctx, "show server_version").Scan(&server.Version); err != nil {
		return server, err
	}
	rows, err := observer.Query(ctx, `
		select name, setting || case when setting = '0' then '' when unit = '8kB' then ' x 8 kB' else coalesce(' ' || unit, '') end
		from pg_catalog.pg_settings where name = any($1)`, settings)
	if err != nil {
		return server, err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		server.Settings[name] = value
		return nil
	})
	return server, err
}

func describeClient(version string) result.Client {
	return result.Client{Version: version, Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU()}
}
