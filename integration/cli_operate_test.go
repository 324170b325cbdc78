package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func cliMigrates(t *testing.T, c cli) {
	c, pool := c.on(t)
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "tables", "pending (optional)")
	c.run(t, "migrate", "status", "--check").exits(t, 1).prints(t, "tables", "pending")
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "1        tables           applied 20", "2        exclusion_range  applied 20", "3        functions        applied 20")
	c.run(t, "migrate", "up", "--output", "json").exits(t, 0).prints(t, `{"version":3,`, `"pending":[]`)
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "functions", "applied 20")
	c.run(t, "migrate", "status", "--check").exits(t, 0)
	if out := c.run(t, "migrate", "status").exits(t, 0).stdout; strings.Contains(out, "memory") {
		t.Errorf("a few kB are too much: %s", out)
	}
	execute(t, pool, `update pg_class set relpages = 10000000 where oid = 'pglimit.token_bucket'::regclass`) // as after a vacuum of 76 GB
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "\nmemory is short: the tables of the buckets have 78125 MB with their indexes, shared_buffers are ", "docs/memory.md\n")
	c.run(t, "migrate", "status", "--output", "json", "--check").exits(t, 0).prints(t, `"memory":{"tables_bytes":8192`)
	execute(t, pool, "drop function pglimit.allow")
	c.run(t, "migrate", "status", "--check").exits(t, 1).prints(t, "function pglimit.allow is missing")
	c.run(t, "migrate", "up").exits(t, 0)
	c.run(t, "migrate", "status", "--check", "--output", "json").exits(t, 0).prints(t, `"differs":[]`)
	c.run(t, "migrate", "down", "--to", "1").exits(t, 0).prints(t, "1        tables           applied 20", "3        functions        pending\n")
	c.run(t, "migrate", "up", "--without-exclusion-range").exits(t, 0)
	c.run(t, "migrate", "status", "--check", "--output", "json").exits(t, 1).prints(t, `"pending":[2]`)
	c.run(t, "migrate", "status", "--check", "--without-exclusion-range").exits(t, 0)
	c.run(t, "migrate", "down", "--to", "0").fails(t, "--yes")
	c.run(t, "migrate", "down", "--to", "0", "--yes").exits(t, 0).prints(t, "1        tables           pending\n")
	if left := texts(t, pool, `select nspname::text from pg_namespace where nspname = 'pglimit'`); len(left) > 0 {
		t.Error("down --to 0 leaves the schema")
	}
}

func cliMigratesWithoutBtreeGist(t *testing.T, c cli) {
	c, admin := c.on(t)
	url := strings.TrimPrefix(c.env[0], "DATABASE_URL=")
	role := newRole(t, url)
	execute(t, admin, "create schema pglimit authorization "+role) // but not the right to create extensions
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	c.env = []string{"DATABASE_URL=" + url + separator + "role=" + role}

	r := c.run(t, "migrate", "up")
	r.fails(t, "btree_gist", "create extension btree_gist", "--without-exclusion-range")
	r.prints(t, "3        functions        applied 20", "2        exclusion_range  pending (optional)")
	c.run(t, "migrate", "up", "--without-exclusion-range").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", "exclusion_range").fails(t, "btree_gist")
	c.run(t, "cleanup", "--once").exits(t, 0)
}

func cliPrintsSQL(t *testing.T, c cli) {
	up := c.run(t, "migrate", "sql").exits(t, 0).stdout // without a database
	down := c.run(t, "migrate", "sql", "--down").exits(t, 0).stdout
	c, pool := c.on(t)
	execute(t, pool, up)
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "3        functions        applied 20")
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	execute(t, pool, down)
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "tables           pending")
}

func cliWritesFiles(t *testing.T, c cli) {
	dir := filepath.Join(t.TempDir(), "db", "pglimit")
	sql := func(arguments ...string) result {
		return c.run(t, append([]string{"migrate", "sql"}, arguments...)...)
	}
	first := filepath.Join(dir, "V1__tables.sql")
	sql("--dir", dir, "--format", "flyway", "--to", "1").exits(t, 0).prints(t, "wrote "+first+"\n")
	// The next release: what is there and the same is left alone.
	sql("--dir", dir, "--format", "flyway").exits(t, 0).prints(t, "wrote "+filepath.Join(dir, "V3__functions.sql"))

	// One that is not the same is not overwritten, and then nothing is written.
	must(t, os.WriteFile(first, []byte("-- changed by hand"), 0o600))
	must(t, os.Remove(filepath.Join(dir, "V3__functions.sql")))
	sql("--dir", dir, "--format", "flyway").fails(t, first+" is there and says something else: nothing is written")
	if text, err := os.ReadFile(first); err != nil || string(text) != "-- changed by hand" {
		t.Errorf("the file was changed by hand, and now is %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "V3__functions.sql")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is written beside one that may not be: %v", err)
	}
	sql("--dir", dir, "--format", "flyway", "--from", "3").exits(t, 0).prints(t, "V3__functions.sql")
	sql("--dir", first).fails(t, "not a directory")
	sql("--dir", dir, "--down").fails(t, "golang-migrate has no files for down alone")
	sql("--from", "3", "--to", "2").fails(t, "from version 3 to 2 is no span")
	sql("--to", "4").fails(t, "there is no migration 4: this release has 1 to 3")
	sql("--to", "0").fails(t, "--to is 0: versions begin with 1")
	sql("--dir", "").fails(t, "--dir is empty")
	sql("--format", "atlas").fails(t, "--format needs a --dir")
}

// Where somebody has a long transaction, migrating says whose it is.
func cliSaysWhoHasTheLock(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "migrate", "down", "--to", "1", "--lock-timeout", "-1s").fails(t, "--lock-timeout is -1s: it must not be negative")
	holder := begin(t, pool)
	execute(t, holder, `select from pglimit.exclusion_range`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := c.command(ctx, t, c.binary, "migrate", "down", "--to", "1", "--lock-timeout", "10ms")
	stderr, err := command.StderrPipe()
	must(t, err)
	must(t, command.Start())
	said, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil || !strings.Contains(said, "holds locks on pglimit.exclusion_range") {
		t.Errorf("said %q, %v", said, err)
	}
	must(t, holder.Rollback(t.Context()))
	must(t, command.Wait())
	c.run(t, "migrate", "status", "--check").exits(t, 1)
}

func cliCleansUpOnce(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "allow", "stays", "--limit", "1/1h").exits(t, 0)
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
		select 'gone:' || i, 'cli', 1000, 1000, 1 from generate_series(1, 3000) i`)
	r := c.run(t, "cleanup", "--once", "--output", "json").exits(t, 0)
	var report struct {
		Removed int64 `json:"removed"`
		Batches int   `json:"batches"`
	}
	must(t, json.Unmarshal([]byte(r.stdout), &report))
	if report.Removed != 3000 || report.Batches < 3 {
		t.Errorf("report %+v", report)
	}
	if left := texts(t, pool, `select key from pglimit.token_bucket`); len(left) != 1 || left[0] != "stays" {
		t.Errorf("left: %q", left)
	}
	c.run(t, "cleanup", "--once").exits(t, 0).prints(t, "0 rows removed\n")
}
