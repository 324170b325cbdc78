package migrations_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
)

// What a service's role needs, to be run by the owner of the schema.
func ExampleGrants() {
	text, err := migrations.Grants("app", migrations.ToDecide, migrations.WithoutExclusionRange())
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, " on pglimit.") {
			fmt.Print(line)
		}
	}
	// Output:
	// grant select, insert, update, delete on pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks, pglimit.upsert, pglimit.for_update_nowait, pglimit.sliding_window, pglimit.sliding_log, pglimit.warm_up to "app";
	// grant select, insert, update, delete on pglimit.permits to "app";
	// grant select on pglimit.holders to "app";
	// grant select, insert, update, delete on pglimit.instances, pglimit.instances_turn to "app";
	// grant select on pglimit.limits to "app";
	// grant select (id, at) on pglimit.limits_history to "app";
}

// Buckets need not survive a crash of the server: keep them out of the WAL.
func ExampleSetStorage() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := migrations.SetStorage(ctx, pool, migrations.Unlogged, migrations.WithLogger(slog.Default())); err != nil {
		log.Fatal(err)
	}
}
