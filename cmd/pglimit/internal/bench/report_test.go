package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

var update = flag.Bool("update", false, "write the files in testdata anew")

// sampleReport has something of everything.
func sampleReport() Report {
	c := DefaultConfig()
	c.Limit = pglimit.PerSecond(1000).WithBurst(2000)
	c.Instances, c.Timeout, c.Leases = 2, 3*time.Second, true
	latency := Latency{85200 * time.Nanosecond, 1530 * time.Microsecond, 12100 * time.Microsecond, 1060 * time.Millisecond, 56 * time.Second}
	return Report{
		Config: c,
		Server: Server{Version: "17.6", Source: "the database of DATABASE_URL"},
		Runs: []Result{
			{
				Strategy: "token_bucket", Limit: "1000/1s burst 2000", Storage: unlogged, Cost: 1, Elapsed: 5 * time.Second,
				Decisions: 1234567, DecisionsPerSecond: 246913.4, Allowed: 28000, Denied: 1206567, Latency: latency,
				Server: &ServerSide{WALBytes: 12345670, TransactionIDs: 28001, DeadTuples: 1000, Updates: 1000, HOTUpdates: 999},
				Stages: Stages{Combining: true, Memory: true, Leases: true, Stats: pglimit.Stats{
					Denied: pglimit.BySource{pglimit.FromMemory: 1_134_567}, Allowed: pglimit.BySource{pglimit.FromLease: 25_000, pglimit.FromDatabase: 75_000}, RoundTrips: 2_500, Requests: 5_000, LeaseTrips: 250,
					LeasedTokens: 26_000, UnspentTokens: 1_000, PassedOnTokens: 12, GivenBack: 3,
				}},
				Audit: Audit{Audited: 178410, Complete: true, Grants: 28000, Denials: 150410, JudgedDenials: 150410, DenialSampling: 8.02},
			},
			{
				Strategy: "exclusion_range", Limit: "1000/1s burst 1", Storage: logged, Adapted: true, Cost: 1, Elapsed: 5 * time.Second,
				Decisions: 1000, DecisionsPerSecond: 200, Allowed: 990, Denied: 10, Contended: 0, Latency: latency,
				Stages: Stages{Combining: true, Memory: true, Stats: pglimit.Stats{Allowed: pglimit.BySource{1000}, RoundTrips: 500, Requests: 1000}},
				Audit:  Audit{Audited: 1000, Grants: 990, Denials: 10, DenialSampling: 1, JudgedDenials: 10, OverTokens: 12, Worst: `12 tokens too many in bucket "user:1"`, DenialsNotDue: 3, KeysWithLostAnswers: 1},
			},
			{
				Strategy: "published_exclusion", Limit: "1000/1s burst 1", Adapted: true, Cost: 1, Elapsed: 5 * time.Second,
				Decisions: 60, DecisionsPerSecond: 12, Allowed: 10, Denied: 50, Latency: latency,
				Errors:      map[string]int64{"40P01 deadlock_detected": 72, kindUnanswered: 4, kindUnserved: 2},
				FirstErrors: map[string]string{"40P01 deadlock_detected": "deadlock\n detected"},
				Server:      &ServerSide{Deadlocks: 72, Incomplete: true},
				Stages:      Stages{Stats: pglimit.Stats{Allowed: pglimit.BySource{60}, RoundTrips: 138, Requests: 138}},
				Audit:       Audit{Audited: 10, Complete: true, Grants: 10, DenialSampling: 1},
			},
		},
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o750), os.WriteFile(path, got, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it anew); got:\n%s", path, got)
	}
}

func TestTableIsForPeople(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := sampleReport().WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", out.Bytes())

	report := sampleReport()
	report.Config.RPS, report.Config.AuditDecisions, report.Interrupted = 5000, 0, true
	report.Runs = report.Runs[:1]
	out.Reset()
	if err := report.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "table_open_loop.txt", out.Bytes())
}

func TestJSONIsForPrograms(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := sampleReport().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(out.Bytes()) {
		t.Error("it is not valid JSON")
	}
	golden(t, "report.json", out.Bytes())
}

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(-1234567), "-1,234,567"},
		{number(0), "0"}, {number(0.25), "0.2"}, {number(99.94), "99.9"}, {number(1234.5), "1,235"},
		{plural(1, "key"), "1 key"}, {plural(2000, "key"), "2,000 keys"},
		{duration(850 * time.Nanosecond), "0.85 µs"}, {duration(85 * time.Microsecond), "85.0 µs"},
		{duration(1234 * time.Microsecond), "1.23 ms"}, {duration(123 * time.Millisecond), "123 ms"}, {duration(56 * time.Second), "56.0 s"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// Exact is said only where every decision was held against the limit.
func TestVerdictClaimsNoMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]Audit{
		"exact":                        {Audited: 9, Complete: true, Denials: 5, JudgedDenials: 4},
		"never over":                   {Audited: 9, Complete: true, Denials: 5, DenialSampling: 3},
		"exact, sampled":               {Audited: 9, Complete: true, Denials: 5, JudgedDenials: 4, DenialSampling: 1.5},
		"no fault seen":                {Audited: 9, Denials: 5, JudgedDenials: 5},
		"nothing to audit":             {Complete: true},
		"2 denials not due":            {Audited: 9, Denials: 5, JudgedDenials: 5, DenialsNotDue: 2},
		"OVER by 3, 1 denials not due": {Audited: 9, Complete: true, OverTokens: 3, DenialsNotDue: 1, KeysWithLostAnswers: 1},
	} {
		if got := (Result{Audit: a}).Verdict(); got != want {
			t.Errorf("%+v is %q, want %q", a, got, want)
		}
	}
	lost := Audit{Audited: 9, Complete: true, Denials: 5, JudgedDenials: 5, KeysWithLostAnswers: 1}
	if got := (Result{Audit: lost}).Verdict(); got != "no fault seen" {
		t.Errorf("an answer was lost, and the verdict is %q", got)
	}
}

// What the server could not be asked is not zero.
func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	report := sampleReport()
	report.Runs = report.Runs[:1]
	report.Runs[0].Server = nil
	var text, object bytes.Buffer
	if err := errors.Join(report.WriteTable(&text), report.WriteJSON(&object)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), "unknown"); n != 5 || !strings.Contains(text.String(), "could not be asked") {
		t.Errorf("%d numbers of the server are unknown, want 5:\n%s", n, text.String())
	}
	for _, field := range []string{"deadlocks", "wal_bytes_per_decision", "transaction_ids_per_decision", "dead_tuples", "hot_update_ratio"} {
		if !strings.Contains(object.String(), `"`+field+`": null`) {
			t.Errorf("%s is not null:\n%s", field, object.String())
		}
	}
}

func TestErrorsArePointedOut(t *testing.T) {
	t.Parallel()
	for errs, pointedOut := range map[int64]bool{10: false, 11: true} {
		result := Result{Strategy: "upsert", Decisions: 990, Errors: map[string]int64{"XX000": errs}, Server: &ServerSide{}}
		if got := strings.Contains(strings.Join(result.notes(Config{}), "\n"), "ended in an error"); got != pointedOut {
			t.Errorf("%d errors beside 990 decisions are pointed out: %v, want %v", errs, got, pointedOut)
		}
	}
}
