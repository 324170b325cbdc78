package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

var pool *pgxpool.Pool // of the service

// When a service starts. Where btree_gist is not allowed, every strategy but
// exclusion_range works all the same.
func ExampleUp() {
	err := migrations.Up(context.Background(), pool, migrations.WithLogger(slog.Default()))
	if errors.Is(err, migrations.ErrBtreeGist) {
		slog.Warn("going on without exclusion_range", "error", err)
	} else if err != nil {
		log.Fatal(err)
	}
}

// When a service starts that can do without its database for a while: the migration waits for
// it, and until then a Limiter answers as its Config.OnError says.
func ExampleWaitForServer() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	migrated := make(chan error, 1)
	go func() { migrated <- migrations.Up(ctx, pool, migrations.WaitForServer()) }()
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name:    "api",
		Limit:   pglimit.PerSecond(10),
		OnError: pglimit.FailLocal(4), // each of four instances decides by a fourth of the limit
	})
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close(ctx) //nolint:errcheck // an example
	// serve ..., and when it ends:
	stop()
	if err := <-migrated; err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("rate limits are not migrated", "error", err)
	}
}

func ExampleStatus() {
	status, err := migrations.Status(context.Background(), pool)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range status {
		fmt.Println(m.Version, m.Name, m.Applied)
	}
}

// For another migration tool: paste this into a migration of its own.
func ExampleSpan_SQL() {
	text, err := migrations.Span{}.SQL()
	if err != nil {
		log.Fatal(err)
	}
	first, _, _ := strings.Cut(text, "\n")
	fmt.Println(first)
	// Output: -- The schema of pglimit, a rate limiter on PostgreSQL. Run it once.
}

// For another migration tool that wants a file per version, in a folder of its own.
func ExampleSpan_Files() {
	files, err := migrations.Span{To: 2}.Files(migrations.GolangMigrate)
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		fmt.Println(f.Name)
	}
	// Output:
	// 000001_tables.up.sql
	// 000001_tables.down.sql
	// 000002_exclusion_range.up.sql
	// 000002_exclusion_range.down.sql
}

// For a goose of one's own.
func ExampleFS() {
	files, err := fs.Glob(migrations.FS, "sql/*.sql")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(files[0])
	// Output: sql/00001_tables.sql
}

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
	// grant select, insert, update, delete on pglimit.top_keys to "app";
	// grant select on pglimit.top to "app";
	// grant select on pglimit.limits to "app";
	// grant select (id, at) on pglimit.limits_history to "app";
}

// Buckets need not survive a crash of the server: keep them out of the WAL.
func ExampleSetStorage() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := migrations.SetStorage(ctx, pool, migrations.Unlogged, migrations.WithLogger(slog.Default())); err != nil {
		log.Fatal(err)
	}
}
