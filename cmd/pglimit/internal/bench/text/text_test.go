package text

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

var update = flag.Bool("update", false, "write the files in testdata")

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o750), os.WriteFile(path, []byte(got), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal([]byte(got), want) {
		t.Errorf("%s differs (go test -update writes it); got:\n%s", path, got)
	}
}

// trouble is a report in which something of everything went wrong.
func troubled() result.Report {
	r := suite(2)
	r.Interrupted = true
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Strategy == "exclusion_range" && run.Scenario == "many-keys-granted":
			run.Audit.OverTokens, run.Audit.DenialsNotDue, run.Audit.Worst = 12, 3, `12 tokens too many in bucket "user:1"`
			run.Audit.Verdict = run.Audit.Judge(run.Denied)
			run.Errors = map[string]int64{"40P01 deadlock_detected": 72, "unanswered": 4, "unserved": 2, "timeout": 1, "overloaded": 9}
			run.FirstErrors = map[string]string{"40P01 deadlock_detected": "deadlock\n detected"}
			run.Deadlocks = new(int64(72))
		case run.Strategy == "upsert" && run.Scenario == "one-per-2s":
			run.WALBytesPerDecision, run.WALBytes, run.Deadlocks, run.DeadTuples, run.HOTUpdateRatio, run.TransactionIDsPerDecision = nil, nil, nil, nil, nil, nil
			run.Audit = nil
		case run.Strategy == "upsert" && run.Scenario == "hot-key-granted-stages":
			run.Audit.OverTokens, run.Audit.Verdict = 1, "OVER by 1"
		}
	}
	return r
}

// published is a report with the write-up's statements beside ours.
func withPublished() result.Report {
	r := suite(1)
	for _, run := range r.Runs {
		if strings.HasSuffix(run.Scenario, "-stages") {
			continue
		}
		if run.Strategy == "for_update_nowait" || run.Strategy == "exclusion_range" {
			run.Strategy = "published_" + strings.TrimSuffix(run.Strategy, "_range")
			run.GrantsPerSecond *= 0.7
			r.Runs = append(r.Runs, run)
		}
	}
	return r
}

// writeUpReport has 600 seconds of the write-up's load.
func writeUpReport() result.Report {
	r := suite(1)
	scenario := r.Scenarios[4]
	scenario.AtMost, scenario.Parameters.Phases = 300, []result.Phase{{From: 5, To: 5, Seconds: 180}, {From: 50, To: 50, Seconds: 180}, {From: 100, To: 100, Seconds: 240}}
	scenario.Parameters.Loop, scenario.Parameters.Instances, scenario.Parameters.DurationSeconds = "open", 2, 600
	r.Scenarios = []result.Scenario{scenario}
	var runs []result.Run
	for i, s := range append(fixtureStrategies, "published_for_update_nowait", "published_exclusion") {
		run := fixtureRun(fixtureLoads[4], scenario, "token_bucket", 0, 1)
		run.Strategy, run.Seconds, run.Allowed, run.Granted, run.Denied = s, 600, 300, 300, 33_600
		run.Decisions = run.Allowed + run.Denied
		switch i {
		case 4:
			run.Allowed, run.Granted = 312, 312
		case 5:
			run.Allowed, run.Granted, run.Denied, run.Deadlocks, run.Latency.Max = 110, 110, 7_000, new(int64(26_800)), 31e6
			run.Errors = map[string]int64{"40P01 deadlock_detected": 26_800}
		}
		runs = append(runs, run)
	}
	r.Runs = runs
	return r
}

func capacity() result.Report {
	r := suite(1)
	r.Scenarios, r.Runs = r.Scenarios[:1], nil
	for i, s := range append(fixtureStrategies, "published_exclusion") {
		c := result.Capacity{Strategy: s, P99Bound: 10_000, Rate: float64(20_000 - 4000*i)}
		for _, n := range []int{1, 8, 64, 512} {
			c.Sweep = append(c.Sweep, result.CapacityPoint{Callers: n, DecisionsPerSecond: min(float64(2000*n), 21_000), P50: 400, P99: 1200 * float64(n)})
		}
		if i == 4 {
			c.Rate, c.Sweep[3].FailedShare = 0, 0.2
		}
		c.Probes = []result.CapacityPoint{{Rate: 30_000, P99: 80_000}, {Rate: c.Rate, P99: 8_450, Kept: c.Rate > 0, Verdict: "exact"}}
		r.Capacity = append(r.Capacity, c)
	}
	return r
}

func compared(t *testing.T, rounds int) string {
	t.Helper()
	before, after := suite(rounds), suite(rounds)
	after.Server.Version, after.Scenarios[0].Parameters.Keys = "18.1", 20_000
	for i := range after.Runs {
		if run := &after.Runs[i]; run.Strategy == "token_bucket" {
			run.GrantsPerSecond, run.GrantLatency.P99 = run.GrantsPerSecond*1.4, run.GrantLatency.P99*1.25
		}
	}
	after.Runs = after.Runs[:len(after.Runs)-1]
	c, err := compare.Reports(before, after)
	if err != nil {
		t.Fatal(err)
	}
	c.Pairs = c.Pairs[:3]
	return Compare(c)
}

// everything that is printed, by the name of its file.
func everything(t *testing.T, o Options) map[string]string {
	t.Helper()
	one := suite(3)
	one.Scenarios = one.Scenarios[:1]
	return map[string]string{
		"suite.txt":           Suite(suite(1), Advice(suite(1)), o),
		"suite_rounds.txt":    Suite(suite(3), Advice(suite(3)), o),
		"suite_trouble.txt":   Suite(troubled(), Advice(troubled()), o),
		"suite_published.txt": Suite(withPublished(), Advice(withPublished()), o),
		"suite_one.txt":       Suite(one, Advice(one), o),
		"writeup.txt":         WriteUp(writeUpReport(), o),
		"capacity.txt":        Capacity(capacity()),
		"scenarios.txt":       Scenarios(suite(1).Scenarios[:5]),
		"compare.txt":         compared(t, 1),
		"compare_rounds.txt":  compared(t, 3),
	}
}

func TestWhatIsPrinted(t *testing.T) {
	t.Parallel()
	for file, got := range everything(t, Options{}) {
		golden(t, file, got)
	}
	details := troubled()
	details.Scenarios = details.Scenarios[:1]
	golden(t, "details.txt", Details(details))
	golden(t, "details_stages.txt", Details(stagesReport()))
}

func TestNoLineIsWiderThanATerminal(t *testing.T) {
	t.Parallel()
	for file, got := range everything(t, Options{}) {
		for line := range strings.Lines(got) {
			if wide := width(strings.TrimSuffix(line, "\n")); wide > Width || strings.HasSuffix(line, " \n") {
				t.Errorf("%s: %d columns, at most %d, and no space at the end: %q", file, wide, Width, line)
			}
		}
	}
}

func TestTheSuiteFitsAScreen(t *testing.T) {
	t.Parallel()
	for _, rounds := range []int{1, 3} {
		for name, words := range map[string][]string{"its own": Advice(suite(rounds)), "as long as may be": manyAdvice()} {
			if lines := strings.Count(Suite(suite(rounds), words, Options{}), "\n"); lines > screen {
				t.Errorf("%d rounds, advice %s: %d lines, at most %d", rounds, name, lines, screen)
			}
		}
	}
}

// On a noisy machine there is more to say, and strategies are often contended.
func TestANoisySuiteFitsAScreen(t *testing.T) {
	t.Parallel()
	for more := range 30 {
		words := manyAdvice()
		for i := range more {
			words = append(words, fmt.Sprint("one line ", i))
		}
		words = append(words, "how sure it is")
		got := Suite(suite(3), words, Options{})
		if lines := strings.Count(got, "\n"); lines > screen {
			t.Errorf("%d more lines of advice: %d lines, at most %d", more, lines, screen)
		}
		if !strings.Contains(got, "- "+words[0][:20]) || !strings.HasSuffix(got, "- how sure it is\n") {
			t.Errorf("%d more lines of advice: the first or the last is not there:\n%s", more, got)
		}
	}
}

// Whatever goes wrong in which runs, the default run fits a screen, and says what to take or why there is nothing.
func TestASuiteOfFaultsFitsAScreen(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) // the same each time
	for n := range 300 {
		r := suite(1 + n%3)
		r.Interrupted = n%2 == 0
		share := random.Float64()
		for i := range r.Runs {
			run := &r.Runs[i]
			run.GrantsPerSecond *= 0.5 + random.Float64()
			if random.Float64() > share {
				continue
			}
			run.Adapted = run.Strategy == "exclusion_range"
			run.Contended = random.Int64N(run.Decisions + 1)
			run.Errors = map[string]int64{"40P01 deadlock_detected": random.Int64N(1 + int64(100_000*random.Float64()))}
			run.Deadlocks = new(run.Errors["40P01 deadlock_detected"])
			if random.Float64() < share*share {
				run.Audit.OverTokens, run.Audit.DenialsNotDue = random.Int64N(20_000), random.Int64N(20_000)
				run.Audit.Verdict = run.Audit.Judge(run.Denied)
			}
		}
		got := Suite(r, Advice(r), Options{})
		if lines := strings.Count(got, "\n"); lines > screen {
			t.Errorf("%d lines, at most %d:\n%s", lines, screen, got)
		}
		said := regexp.MustCompile(`- (Take|No clear winner|That leaves|None can be recommended)`)
		if !said.MatchString(got) {
			t.Errorf("it recommends nothing:\n%s", got)
		}
		for line := range strings.Lines(got) {
			if width(line) > Width+1 {
				t.Errorf("too wide: %s", line)
			}
		}
	}
}

// Where the suite has more to say than fits, the columns are named once.
func TestALongSuiteSavesHeads(t *testing.T) {
	t.Parallel()
	head := "grants denials"
	if n := strings.Count(Suite(suite(1), nil, Options{}), head); n != 5 {
		t.Errorf("%d heads, want one for each block", n)
	}
	long := append(manyAdvice(), manyAdvice()...)
	if n := strings.Count(Suite(suite(1), long, Options{}), head); n != 1 {
		t.Errorf("%d heads, want 1", n)
	}
}

func TestColourChangesNoText(t *testing.T) {
	t.Parallel()
	escape := regexp.MustCompile("\x1b\\[[0-9;]*m")
	plain := everything(t, Options{})
	for file, got := range everything(t, Options{Colour: true}) {
		if escape.ReplaceAllString(got, "") != plain[file] {
			t.Errorf("%s differs in colour", file)
		}
		if strings.HasPrefix(file, "suite") && !strings.Contains(got, "\x1b[32mtoken_bucket *") {
			t.Errorf("%s: the best row is not green", file)
		}
	}
	if bad := "\x1b[31mOVER by 12"; !strings.Contains(Suite(troubled(), nil, Options{Colour: true}), bad) {
		t.Error("a fault is not red")
	}
}

// stagesReport has every stage, of which one strategy has none.
func stagesReport() result.Report {
	r := suite(1)
	r.Scenarios, r.Runs = r.Scenarios[6:7], r.Runs[24:27]
	p := &r.Scenarios[0].Parameters
	p.Leases, p.Lanes, p.MaxWaiting, p.DenialTTLSeconds, p.TimeoutSeconds, p.Durability = true, 8, 1000, 2, 3, "durable"
	p.RPS, p.Loop, p.Arrivals, p.LockedShare = 5000, "open", "poisson", 0.01
	r.Scenarios[0].StagesOf = ""
	r.Runs[0].Stages = result.Stages{
		Combining: true, Memory: true, Leases: true, RoundTripsPerDecision: 0.00223, RememberedRatio: 0.919, LeasedRatio: 0.0203,
		CallersPerRoundTrip: 30, RequestsPerRoundTrip: 2, LeaseTrips: 250, LeasedTokens: 26_000, UnspentTokens: 1_000, PassedOnTokens: 12, GivenBackTokens: 3,
	}
	r.Runs[0].Storage = new("unlogged")
	r.Runs[1].Audit.Complete, r.Runs[1].Audit.KeysWithLostAnswers, r.Runs[1].StatisticsComplete = false, 1, false
	r.Runs[2].Stages, r.Runs[2].Strategy, r.Runs[2].Audit.Verdict = result.Stages{}, "published_exclusion", result.VerdictNeverOver
	return r
}

func TestErrorsArePointedOut(t *testing.T) {
	t.Parallel()
	for failed, pointedOut := range map[int64]bool{10: false, 11: true} {
		row := result.Row{Strategy: "upsert", Runs: []result.Run{{Decisions: 990, Errors: map[string]int64{"XX000": failed}}}}
		if got := strings.Contains(strings.Join(errorNotes(result.Group{}, row), "\n"), "ended in an error"); got != pointedOut {
			t.Errorf("%d errors beside 990 decisions are pointed out: %v, want %v", failed, got, pointedOut)
		}
	}
}

// What the server could not be asked is not zero.
func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	r := troubled()
	r.Scenarios = r.Scenarios[4:5]
	got := Details(r)
	if n := strings.Count(got, "? │"); n != 5 || !strings.Contains(got, "upsert: the server could not be asked") {
		t.Errorf("%d numbers of the server are unknown, want 5:\n%s", n, got)
	}
}

// A sample of 1 in 8 overlooks 22 wrong denials with a chance of (7/8)^22 = 5.3 %.
func TestWhatASampleMayMiss(t *testing.T) {
	t.Parallel()
	if got := missed(8); got != 22 {
		t.Errorf("%d, want 22", got)
	}
	r := suite(1)
	r.Scenarios = r.Scenarios[6:7]
	if got := Details(r); strings.Count(got, "token_bucket: every grant was checked, but only 1 denial of 8: up to 22 wrong denials") != 1 {
		t.Errorf("what the sample may miss is not said in one sentence:\n%s", got)
	}
}

func TestStagesInWords(t *testing.T) {
	t.Parallel()
	p := result.Parameters{Combining: true, Memory: true}
	if got, want := stagesText(p), "combining, memory of denials, no leases"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p = result.Parameters{Combining: true, Lanes: 8, MaxWaiting: 1000, Leases: true, LeaseTTLSeconds: 2}
	if got, want := stagesText(p), "combining (8 lanes, at most 1,000 waiting), no memory of denials, leases (2s)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Nothing measured is no fault of the printing.
func TestEmptyReports(t *testing.T) {
	t.Parallel()
	var r result.Report
	for what, got := range map[string]string{"Suite": Suite(r, nil, Options{}), "Capacity": Capacity(r), "WriteUp": WriteUp(r, Options{}), "Scenarios": Scenarios(nil)} {
		if got != "" {
			t.Errorf("%s prints %q", what, got)
		}
	}
	r = suite(1)
	r.Scenarios = r.Scenarios[5:6] // with stages, and without the scenario to compare it with
	if got := Suite(r, nil, Options{}); !strings.Contains(got, "many keys, all granted, with stages: 64 callers") {
		t.Errorf("it is not printed as a scenario of its own:\n%s", got)
	}
}
