package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

func cliMigrates(t *testing.T, c cli) {
	c, pool := c.on(t)
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "core", "pending (optional)")
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "applied 1 core\n", "at version 8\n")
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "nothing to do\n")
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "token_bucket", "applied 20")
	c.run(t, "migrate", "down").exits(t, 0).prints(t, "undone 7 exclusion_range\n", "at version 8\n")
	c.run(t, "migrate", "down", "--to", "4").exits(t, 0).prints(t, "at version 4\n")
	c.run(t, "migrate", "down", "--all").exits(t, 0).prints(t, "no migration is applied\n")
	if left := texts(t, pool, `select nspname::text from pg_namespace where nspname = 'pglimit'`); len(left) > 0 {
		t.Error("down --all leaves the schema")
	}
}

func cliMigratesWithoutBtreeGist(t *testing.T, c cli) {
	c, admin := c.on(t)
	url := strings.TrimPrefix(c.env[0], "DATABASE_URL=")
	role := newRole(t, url)
	run(t, admin, "create schema pglimit authorization "+role) // but not the right to create extensions
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	c.env = []string{"DATABASE_URL=" + url + separator + "role=" + role}

	r := c.run(t, "migrate", "up")
	r.fails(t, "btree_gist", "create extension btree_gist", "--without-exclusion-range")
	r.prints(t, "applied 2 token_bucket\n", "at version 8\n")
	c.run(t, "migrate", "up", "--without-exclusion-range").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", "exclusion_range").fails(t, "btree_gist")
	c.run(t, "cleanup", "--once").exits(t, 0)
}

func cliPrintsSQL(t *testing.T, c cli) {
	up := c.run(t, "migrate", "sql").exits(t, 0).stdout // without a database
	down := c.run(t, "migrate", "sql", "--down").exits(t, 0).stdout
	c, pool := c.on(t)
	run(t, pool, up)
	c.run(t, "migrate", "up").exits(t, 0).prints(t, "nothing to do\n", "at version 8\n")
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	run(t, pool, down)
	c.run(t, "migrate", "status").exits(t, 0).prints(t, "core               pending")
}

func cliCleansUpOnce(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "allow", "stays", "--limit", "1/1h").exits(t, 0)
	run(t, pool, `insert into pglimit.token_bucket (key, limiter, debt, at_us, token_parts, refill_parts, burst)
		select 'gone:' || i, 'cli', 1, 1, 1000, 1, 10 from generate_series(1, 3000) i`)
	r := c.run(t, "cleanup", "--once", "--batch-size", "500", "--pause", "0", "--output", "json").exits(t, 0)
	var report struct {
		Removed    int64 `json:"removed"`
		Batches    int   `json:"batches"`
		Strategies []struct {
			Strategy string `json:"strategy"`
			Removed  int64  `json:"removed"`
		} `json:"strategies"`
	}
	must(t, json.Unmarshal([]byte(r.stdout), &report))
	if report.Removed != 3000 || report.Batches < 5 || len(report.Strategies) != 4 || report.Strategies[0].Removed != 3000 {
		t.Errorf("report %+v", report)
	}
	if left := texts(t, pool, `select key from pglimit.token_bucket`); len(left) != 1 || left[0] != "stays" {
		t.Errorf("left: %q", left)
	}
	c.run(t, "cleanup", "--once").exits(t, 0).prints(t, "STRATEGY", "token_bucket", "total")
}
