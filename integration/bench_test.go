package integration

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What "pglimit bench" is promised to measure, and that it leaves nothing behind.
func TestBench(t *testing.T) {
	t.Parallel()
	binary := builtCLI(t)
	for name, test := range map[string]func(*testing.T, cli){
		"measures every strategy":                    benchMeasuresEveryStrategy,
		"the published statements":                   benchRunsThePublishedStatements,
		"a strategy that grants too much exits 1":    benchFindsOverAdmission,
		"keys that have rows":                        benchTouchesEveryKey,
		"a database without migrations says so":      benchNeedsMigrations,
		"Ctrl-C prints what was measured":            benchPrintsOnInterrupt,
		"without exclusion_range it goes on":         benchGoesOnWithoutExclusionRange,
		"a lost server leaves numbers unknown":       benchLosesItsServer,
		"without a database it starts one":           benchStartsAServer,
		"unlogged tables":                            benchMeasuresUnloggedTables,
		"the suite, its report":                      benchRunsTheSuite,
		"runs that were kept":                        benchKeepsJSON,
		"conditions":                                 benchJudges,
		"capacity":                                   benchFindsTheCapacity,
		"without a database it removes it on Ctrl-C": benchRemovesItsServerOnInterrupt,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cli{binary: binary})
		})
	}
}

// Each key has a row before the load, and the token that it cost is missing then: no more is granted, and no
// denial is taken for a fault.
func benchTouchesEveryKey(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	report := c.bench(t, 0, "--set", "with-rows=true", "--keys", "30", "--limit", "3/1h", "--strategies", "token_bucket,upsert,for_update_nowait")
	if len(report.Runs) != 3 || report.Scenarios[0]["with-rows"] != true {
		t.Fatalf("%+v", report)
	}
	for _, run := range report.Runs {
		// A slow machine may not take all of them.
		if a := run.Audit; a.Verdict != "never over" || a.AuditedGrants > 2*30 || a.AuditedGrants == 0 || a.JudgedDenials != 0 || len(run.Errors) > 0 {
			t.Errorf("%s: want 60 grants at most: %+v, %v", run.Strategy, a, run.Errors)
		}
	}
	benchLeftNothing(t, pool)
	c.run(t, "bench", "--set", "with-rows=true", "--keys", "10000001").fails(t, "keys is 10000001: it must be from 1 to 10000000")
}

// benchReport is what scripts read of the JSON.
type benchReport struct {
	Scenarios   []map[string]any
	Server      struct{ Version, Source string }
	Interrupted bool
	Runs        []benchRun
}

type benchRun struct {
	Strategy            string
	Limit               string
	Storage             string
	Decisions           int64
	WireRoundTrips      int64              `json:"wire_round_trips"`
	DecisionsPerSecond  float64            `json:"decisions_per_second"`
	Latency             map[string]float64 `json:"latency_us"`
	Allowed, Denied     int64
	Contended           int64
	Errors              map[string]int64
	WALBytesPerDecision *float64 `json:"wal_bytes_per_decision"`
	Audit               struct {
		Verdict        string
		OverTokens     int64 `json:"over_tokens"`
		DenialsNotDue  int64 `json:"denials_not_due"`
		Audited        int64
		AuditedGrants  int64 `json:"audited_grants"`
		AuditedDenials int64 `json:"audited_denials"`
		JudgedDenials  int64 `json:"judged_denials"`
		Complete       bool
	}
	Series []struct{ Granted, Denied int64 }
	Stages struct {
		Combining, Memory, Leases bool
		RememberedRatio           float64 `json:"remembered_ratio"`
		LeasedRatio               float64 `json:"leased_ratio"`
		CallersPerRoundTrip       float64 `json:"callers_per_round_trip"`
		RequestsPerRoundTrip      float64 `json:"requests_per_round_trip"`
	}
}

// benchBare has every request be a round trip.
var benchBare = []string{"--no-combining", "--no-memory"}

// bench runs it for a short time and reads its JSON.
func (c cli) bench(t *testing.T, code int, args ...string) benchReport {
	t.Helper()
	return c.runBench(t, args...).exits(t, code).report(t)
}

func (c cli) runBench(t *testing.T, args ...string) result {
	t.Helper()
	c.env = append(c.env, "PGCONNECT_TIMEOUT=60") // and no breaker: on a busy machine a server that lives says nothing for seconds
	return c.run(t, append([]string{"bench", "--output", "json", "--set", "no-breaker=true", "--duration", "400ms", "--set", "warmup=100ms", "--callers", "16", "--set", "conns=4"}, args...)...)
}

func (r result) report(t *testing.T) (report benchReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%q does not print one JSON object: %v\n%s", r.args, err, r.stdout)
	}
	return report
}

// benchLeftNothing checks that no row and no schema of a run is there.
func benchLeftNothing(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	left := texts(t, pool, `
		select 'row in ' || s from (
			select 'token_bucket' s from pglimit.token_bucket union all select 'upsert' from pglimit.upsert union all
			select 'for_update_nowait' from pglimit.for_update_nowait union all select 'exclusion_range' from pglimit.exclusion_range union all
			select 'sliding_window' from pglimit.sliding_window union all select 'sliding_log' from pglimit.sliding_log union all
			select 'warm_up' from pglimit.warm_up) rows
		union all select 'schema ' || nspname from pg_namespace where nspname like '%published%'`)
	if len(left) > 0 {
		t.Errorf("it leaves behind: %q", left)
	}
}

func benchMeasuresEveryStrategy(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	// A limit that every strategy reaches, and a time that is longer than a busy machine may make all wait.
	report := c.bench(t, 0, append(benchBare, "--limit", "10/1s", "--duration", "2s", "--set", "warmup=500ms")...)
	var names []string
	for _, run := range report.Runs {
		names = append(names, run.Strategy)
		if run.Decisions != run.Allowed+run.Denied || run.Decisions < 16 || run.DecisionsPerSecond <= 0 || run.Allowed == 0 {
			t.Errorf("%s: %d decisions (%.0f/s), %d allowed, %d denied", run.Strategy, run.Decisions, run.DecisionsPerSecond, run.Allowed, run.Denied)
		}
		before := 0.0
		for _, quantile := range []string{"p50", "p90", "p99", "p999", "max"} {
			value, there := run.Latency[quantile]
			if !there || value <= 0 || value < before {
				t.Errorf("%s: latencies %v", run.Strategy, run.Latency)
			}
			before = value
		}
		if len(run.Errors) > 0 || run.Audit.OverTokens > 0 || run.Audit.DenialsNotDue > 0 {
			t.Errorf("%s: errors %v, audit %+v", run.Strategy, run.Errors, run.Audit)
		}
		// The warm-up's decisions are audited too.
		if !run.Audit.Complete || run.Audit.Audited <= run.Decisions {
			t.Errorf("%s: %d of %d decisions audited, complete: %v", run.Strategy, run.Audit.Audited, run.Decisions, run.Audit.Complete)
		}
		// A slow machine may not reach the limit.
		if run.Denied > run.Contended && (run.Audit.Verdict != "exact" || run.Audit.JudgedDenials == 0) {
			t.Errorf("%s: %s, with %d denials judged", run.Strategy, run.Audit.Verdict, run.Audit.JudgedDenials)
		}
		// Each grant writes.
		if run.WALBytesPerDecision == nil || *run.WALBytesPerDecision <= 0 {
			t.Errorf("%s: WAL %v", run.Strategy, run.WALBytesPerDecision)
		}
		limit := "10/1s"
		if run.Strategy == "exclusion_range" {
			limit = "10/1s burst 1"
		}
		if run.Limit != limit {
			t.Errorf("%s runs under %s, want %s", run.Strategy, run.Limit, limit)
		}
		// On the wire too, and those of the warm-up are not among them. What was overtaken is
		// asked again, and for_update_nowait has two trips.
		if trips := float64(run.WireRoundTrips) / float64(run.Decisions); run.Strategy == "token_bucket" && (trips < 0.95 || trips > 1.5) || trips < 0.95 {
			t.Errorf("%s: %.2f round trips on the wire for each decision", run.Strategy, trips)
		}
		if s := run.Stages; s.Combining || s.Memory || s.RememberedRatio != 0 {
			t.Errorf("%s: without stages every decision is a round trip, not %+v", run.Strategy, s)
		}
	}
	if got, want := strings.Join(names, " "), "token_bucket upsert for_update_nowait exclusion_range"; got != want {
		t.Errorf("it runs %s, want %s", got, want)
	}
	if p := report.Scenarios[0]; report.Server.Version == "" || p["callers"] != 16.0 || p["limit"] != "10/1s" || report.Interrupted {
		t.Errorf("server %+v, parameters %v", report.Server, p)
	}
	benchLeftNothing(t, pool)
}

// The write-up's statements run beside ours. Whether callers of its exclusion constraint deadlock is a matter of the
// machine.
func benchRunsThePublishedStatements(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	r := c.runBench(t, "--strategies", "exclusion_range", "--published", "--limit", "1/200ms", "--keys", "1", "--duration", "600ms")
	if mostly := strings.Contains(r.stderr, "published_exclusion, custom: ") && strings.Contains(r.stderr, "of the requests failed"); !mostly {
		r.exits(t, 0)
	}
	report := r.report(t)
	var names []string
	for _, run := range report.Runs {
		names = append(names, run.Strategy)
		if run.Audit.OverTokens > 0 {
			t.Errorf("%s: over by %d", run.Strategy, run.Audit.OverTokens)
		}
		// The published statements do not tell when they denied.
		if strings.HasPrefix(run.Strategy, "published_") && (run.Audit.AuditedDenials > 0 || run.Audit.Verdict == "exact") {
			t.Errorf("%s: %d denials were audited, %s", run.Strategy, run.Audit.AuditedDenials, run.Audit.Verdict)
		}
		if run.Allowed+run.Denied == 0 || len(run.Errors) > 0 && run.Strategy != "published_exclusion" {
			t.Errorf("%s: %d allowed, errors %v", run.Strategy, run.Allowed, run.Errors)
		}
	}
	if got, want := strings.Join(names, " "), "exclusion_range published_for_update_nowait published_exclusion published_upsert"; got != want {
		t.Errorf("it runs %s, want %s", got, want)
	}
	benchLeftNothing(t, pool)
}

func benchNeedsMigrations(t *testing.T, c cli) {
	c, _ = c.on(t)
	r := c.run(t, "bench", "--duration", "1s").exits(t, 2)
	if said := strings.Split(strings.TrimSpace(r.stderr), "\n"); len(said) != 2 || !strings.Contains(said[1], "pglimit migrate up") {
		t.Errorf("it says %q", said)
	}
}

func benchPrintsOnInterrupt(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	command := c.command(t.Context(), t, c.binary, "bench", "--duration", "60s", "--set", "warmup=0s", "--callers", "4", "--set", "conns=2")
	var stdout strings.Builder
	command.Stdout = &stdout
	must(t, command.Start())
	eventually(t, pool, "select count(*) > 0 from pglimit.token_bucket where key like 'user:%'")
	must(t, command.Process.Signal(os.Interrupt))
	_ = command.Wait() // its error is the exit code
	if code := command.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	for _, part := range []string{"token_bucket", "decisions/s", "verdict", "Interrupted"} {
		if !strings.Contains(stdout.String(), part) {
			t.Errorf("it does not print %q, but\n%s", part, stdout.String())
		}
	}
	benchLeftNothing(t, pool)
}

// throwaway skips a test where no throwaway server can be had: then the tests' own
// comes from elsewhere.
func (r result) throwaway(t *testing.T) result {
	t.Helper()
	if r.code == 2 && strings.Contains(r.stderr, "no throwaway Postgres") {
		t.Skip(r.stderr)
	}
	return r
}

// PGUSER or PGPORT in a profile do not send the load to the server of this machine. The throwaway
// has the tables that are wished for.
func benchStartsAServer(t *testing.T, c cli) {
	c.env = []string{"PGUSER=nobody", "PGPORT=1"}
	r := c.run(t, "bench", "--strategies", "token_bucket", "--keys", "1", "--limit", "1/1h", "--unlogged", "--durability", "durable", "--details",
		"--duration", "300ms", "--set", "warmup=0s").throwaway(t).exits(t, 0)
	r.prints(t, "a throwaway", "token_bucket", "exact", "unlogged")
	for _, part := range []string{"starting a throwaway", "removed the throwaway"} {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("it does not say %q, but\n%s", part, r.stderr)
		}
	}
}

func benchRemovesItsServerOnInterrupt(t *testing.T, c cli) {
	process, wait := c.started(t, "started PostgreSQL", "bench", "--duration", "60s")
	if stderr := endsSoon(t, process, wait, 130); !strings.Contains(stderr, "removed the throwaway") {
		t.Errorf("it does not say that it removed the server:\n%s", stderr)
	}
}
