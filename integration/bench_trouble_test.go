package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How "pglimit bench" does where something is missing, goes away, cannot be removed, or
// decides wrongly: see TestBench.

func benchGoesOnWithoutExclusionRange(t *testing.T, c cli) {
	c, _ = c.on(t)
	c.run(t, "migrate", "up", "--without-exclusion-range").exits(t, 0)
	short := []string{"--duration", "100ms", "--set", "warmup=0s", "--callers", "4", "--set", "conns=2"}
	r := c.run(t, append([]string{"bench"}, short...)...).exits(t, 0)
	r.prints(t, "token_bucket", "upsert", "for_update_nowait")
	if table, _, _ := strings.Cut(r.stdout, "Not run: "); strings.Contains(table, "exclusion_range") || !strings.Contains(r.stdout, "Not run: exclusion_range, ") {
		t.Errorf("stdout:\n%s\nstderr:\n%s", r.stdout, r.stderr)
	}
	r = c.run(t, append([]string{"bench", "--strategies", "upsert,exclusion_range"}, short...)...).exits(t, 2)
	if !strings.Contains(r.stderr, "exclusion_range needs the extension btree_gist") {
		t.Errorf("it says %s", r.stderr)
	}
}

// The database goes away in the middle: what was counted until then is not known, and
// not zero or less.
func benchLosesItsServer(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	command := c.command(t.Context(), t, c.binary, "bench", "--output", "json", "--strategies", "token_bucket",
		"--duration", "5s", "--set", "warmup=0s", "--callers", "4", "--set", "conns=2")
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	must(t, command.Start())
	eventually(t, pool, "select count(*) > 0 from pglimit.token_bucket where key like 'user:%'")
	name := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	_, err := serverFor(t).admin.Exec(t.Context(), "alter database "+name+" allow_connections false")
	must(t, err)
	execute(t, pool, `select pg_terminate_backend(pid) from pg_stat_activity
		where datname = current_database() and application_name like 'pglimit bench%'`)
	_ = command.Wait() // its error is the exit code
	if code := command.ProcessState.ExitCode(); code != 2 || !strings.Contains(stderr.String(), "cannot remove what the run left behind") {
		t.Errorf("exit code %d, stderr %s", code, stderr.String())
	}
	var report benchReport
	if err := json.Unmarshal([]byte(stdout.String()), &report); err != nil || len(report.Runs) != 1 {
		t.Fatalf("%v\n%s", err, stdout.String())
	}
	got := report.Runs[0]
	if got.WALBytesPerDecision != nil {
		t.Errorf("what nobody could ask the server is\n%s", stdout.String())
	}
	refused := int64(0)
	for _, n := range got.Errors {
		refused += n
	}
	if refused < 4 || refused > 250 { // 4 callers, 5 s, 10 a second, and those that were cut off
		t.Errorf("%d errors: %v", refused, got.Errors)
	}
}

// benchBreaks replaces the function of token_bucket for single requests by one that decides
// like this, and says that so much is owed then.
func benchBreaks(t *testing.T, pool *pgxpool.Pool, decision, owedNS string) {
	t.Helper()
	execute(t, pool, `
		create or replace function pglimit.token_bucket_take(
			_key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text, _calendar text default null,
			relaxed boolean default false, ahead_ns bigint default 0
		) returns bigint[] language plpgsql set search_path = '' as $$
		declare
			now_ns bigint := pglimit.clock_ns();
		begin
			return array[now_ns, `+decision+`, now_ns + `+owedNS+`, _token_ns, now_ns, 0, 0];
		end $$`)
}

func benchFindsOverAdmission(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	benchBreaks(t, pool, "want", "0")
	run := c.bench(t, 1, append(benchBare, "--strategies", "token_bucket", "--limit", "1/1h", "--keys", "1")...).Runs[0]
	if run.Allowed < 16 || run.Audit.OverTokens < run.Allowed/2 {
		t.Errorf("over by %d tokens, with %d granted and a limit of 1/1h", run.Audit.OverTokens, run.Allowed)
	}
}
