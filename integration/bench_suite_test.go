package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What "pglimit bench" prints, writes and judges: see TestBench.

// benchQuick has the suite take a few seconds.
var benchQuick = []string{"--duration", "70ms", "--repeat", "1", "--set", "conns=4", "--callers", "16"}

// How wide and long the output is, and what the report has, are tests of packages text and report.
func benchRunsTheSuite(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	page := filepath.Join(t.TempDir(), "bench.html")
	r := c.run(t, append([]string{"bench", "--scenario", "suite", "--report", page}, benchQuick...)...).exits(t, 0)
	if said := "pglimit: the load is for the database "; !strings.HasPrefix(r.stderr, said) {
		t.Errorf("before anything else it says %q: %s", said, r.stderr)
	}
	r.prints(t, "many keys, granted", "hot key, denied", "partners, denied", "With the default stages", "token_", "exclusion_", "audited: ", " 0 over", "--strategies all")
	// On a busy machine a strategy may have a fault, which is a line of its own.
	if high := strings.Count(r.stdout, "\n") - strings.Count(r.stdout, "\n! "); high > 24 {
		t.Errorf("it has %d lines, and a screen has 24:\n%s", high, r.stdout)
	}
	html, err := os.ReadFile(page)
	must(t, err)
	if !strings.Contains(string(html), "<svg") || !strings.Contains(string(html), "--report "+page) {
		t.Error("the report has no picture, or no command")
	}
	benchLeftNothing(t, pool)
}

// What JSON has been kept can be compared later.
func benchKeepsJSON(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	dir := t.TempDir()
	old := filepath.Join(dir, "old.json")
	r := c.run(t, append([]string{"bench", "--output", "json", "--scenario", "many-keys-granted,hot-key-denied", "--strategies", "token_bucket,upsert"}, benchQuick...)...).exits(t, 0)
	must(t, os.WriteFile(old, []byte(r.stdout), 0o600))
	c.run(t, "bench", "compare", old, old).exits(t, 0).
		prints(t, "many keys, granted", "token_bucket", "upsert", "noise")
	for text, want := range map[string]string{"[]": "is no report of", "{}": "has no runs"} {
		file := filepath.Join(dir, "other.json")
		must(t, os.WriteFile(file, []byte(text), 0o600))
		c.run(t, "bench", "compare", old, file).fails(t, want)
	}
}

func benchJudges(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	args := []string{"bench", "--strategies", "token_bucket", "--keys", "10", "--limit", "1000000/1s", "--duration", "200ms", "--set", "warmup=0s", "--callers", "4", "--set", "conns=2"}
	c.run(t, append(args, "--fail-if", "over>0", "--fail-if", "p99(grant)>1m", "--fail-if", "errors>1%")...).exits(t, 0)
	r := c.run(t, append(args, "--fail-if", "over>0", "--fail-if", "p99(grant)>1us")...).exits(t, 1)
	if strings.Count(r.stderr, "\n") != 2 || !strings.Contains(r.stderr, "\npglimit: token_bucket, custom: p99(grant) is ") {
		t.Errorf("stderr is %s", r.stderr)
	}
	r = c.run(t, append(args, "--set", "timeout=1us")...).exits(t, 1) // one may be answered before its timer has fired
	if !regexp.MustCompile(`: (9\d|100) % of the requests failed`).MatchString(r.stderr) {
		t.Errorf("stderr is %s", r.stderr)
	}
}

// How the highest rate is found is a test of package bench.
func benchFindsTheCapacity(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "bench", "capacity", "--output", "json", "--strategies", "token_bucket", "--duration", "300ms", "--set", "warmup=0s", "--set", "conns=4", "--p99", "10s", "--callers", "8").
		exits(t, 0).prints(t, `"capacity":`, `"probes":`)
	benchLeftNothing(t, pool)
}
