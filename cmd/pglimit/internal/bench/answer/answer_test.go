package answer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/answer"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// report of loads "a", "b" and so on, with the grants per second of each round: one map for each load.
func report(loads ...map[string][]float64) (r result.Report) {
	for i, load := range loads {
		name := string(rune('a' + i))
		r.Scenarios = append(r.Scenarios, result.Scenario{Name: name, Title: name, CompareBy: scenario.ByGrants})
		for _, strategy := range []string{"upsert", "token_bucket", "sliding_log", "published_upsert"} {
			for round, rate := range load[strategy] {
				r.Runs = append(r.Runs, result.Run{
					Scenario: name, Strategy: strategy, Round: round + 1, GrantsPerSecond: rate, Decisions: 1000, Seconds: 2,
					Audit: &result.Audit{Audited: 1000, Complete: true, DenialSampling: 1},
				})
			}
		}
	}
	return r
}

// short are runs of less than a second.
func short(r result.Report) result.Report {
	for i := range r.Runs {
		r.Runs[i].Seconds = 0.3
	}
	return r
}

type rounds = map[string][]float64

func TestChoice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		report     result.Report
		take, next string
		headline   string
		says       string // part of the sentences
	}{
		"the best in most loads": {
			report(rounds{"upsert": {200, 201, 202}, "token_bucket": {100, 101, 102}}, rounds{"upsert": {150, 151, 152}, "token_bucket": {100, 101, 102}},
				rounds{"upsert": {100, 101, 102}, "token_bucket": {110, 111, 112}}),
			"upsert", "token_bucket", "Take upsert: up to 2.0 × the grants/s of token_bucket, the next best",
			`in 2 of 3 loads; furthest ahead in "a", with 201 grants/s beside 101 grants/s; ` +
				`furthest behind in "c", with 101 grants/s beside 111 grants/s of token_bucket.`,
		},
		"as often the best: the default": {
			report(rounds{"upsert": {400, 401, 402}, "token_bucket": {100, 101, 102}}, rounds{"upsert": {100, 101, 102}, "token_bucket": {200, 201, 202}}),
			"token_bucket", "upsert", "Take token_bucket: up to 2.0 × the grants/s of upsert, the next best", "in 1 of 2 loads",
		},
		"rounds that overlap": {
			report(rounds{"upsert": {100, 120, 140}, "token_bucket": {90, 101, 121}}),
			"token_bucket", "upsert", "Too close to call between token_bucket, upsert", "take token_bucket, the default",
		},
		"single runs that differ by a seventh": {
			report(rounds{"upsert": {100}, "token_bucket": {86}}), "token_bucket", "upsert", "Too close to call between token_bucket, upsert", "Nothing measured here decides: take token_bucket, the default, which takes any limit in one round trip.",
		},
		"single runs that differ by a fifth": {
			report(rounds{"upsert": {100}, "token_bucket": {80}}), "upsert", "token_bucket", "Take upsert: 1.2 × the grants/s of token_bucket, the next best", "It has 100 grants/s beside 80 grants/s.",
		},
		"single runs that are short": {
			short(report(rounds{"upsert": {100}, "token_bucket": {80}})), "token_bucket", "upsert", "Too close to call between token_bucket, upsert", "the default",
		},
		"rounds that lie far apart": {
			report(rounds{"upsert": {100, 200, 300}, "token_bucket": {10, 20, 30}}, rounds{"upsert": {100, 101, 102}}),
			"", "", "No answer: the rounds lie too far apart", "In 2 of 3 cells they differ by more than half",
		},
		"who has a fault elsewhere is no measure": {
			func() result.Report {
				r := report(rounds{"upsert": {200}, "token_bucket": {100}, "sliding_log": {900}}, rounds{"upsert": {100}, "token_bucket": {101}, "sliding_log": {50}})
				r.Runs[len(r.Runs)-1].Audit.DenialsNotDue = 1
				return r
			}(),
			"upsert", "token_bucket", "Take upsert: up to 2.0 × the grants/s of token_bucket, the next best", "in 2 of 2 loads",
		},
		"one strategy":                 {report(rounds{"upsert": {100}}), "upsert", "", "Only upsert was run", `It made 100 grants/s in "a"`},
		"published ones are beside us": {report(rounds{"upsert": {100}, "published_upsert": {900}}), "upsert", "", "Take upsert: all others had faults", "100 grants/s"},
		"nothing was run":              {result.Report{}, "", "", "", ""},
		"the write-up":                 {resulttest.WriteUp(), "token_bucket", "upsert", "Too close to call between token_bucket, upsert, for_update_nowait, exclusion_range", ""},
	} {
		a := answer.Of(c.report)
		if a.Take != c.take || a.Next != c.next || a.Headline != c.headline || !strings.Contains(a.Because, c.says) {
			t.Errorf("%s: take %q, then %q\n%s\n%s", name, a.Take, a.Next, a.Headline, a.Because)
		}
	}
}

// A strategy with a fault in any load is out, and the answer names the fault.
func TestFaultsRuleOut(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*result.Run){
		"upsert, a: over by 2 tokens":                 func(run *result.Run) { run.Audit.OverTokens = 2 },
		"upsert, a: 1 denial undue":                   func(run *result.Run) { run.Audit.DenialsNotDue = 1 },
		"upsert, a: 1.96 % failed":                    func(run *result.Run) { run.Errors = map[string]int64{"timeout": 20} },
		"upsert, a: granted 5 tokens too many":        func(run *result.Run) { run.Granted = 105 },
		"upsert, a: over by 1 token, 3 denials undue": func(run *result.Run) { run.Audit.OverTokens, run.Audit.DenialsNotDue = 1, 3 },
		"": func(run *result.Run) { run.Errors = map[string]int64{"timeout": 1} },
	} {
		r := report(rounds{"upsert": {200}, "token_bucket": {100}}, rounds{"upsert": {200}, "token_bucket": {100}})
		r.Scenarios[0].AtMost = 100
		spoil(&r.Runs[0])
		a := answer.Of(r)
		if got := strings.Join(a.Faults, "; "); got != want || (a.Take == "upsert") != (want == "") {
			t.Errorf("take %q: faults %q, want %q", a.Take, got, want)
		}
		if c := a.Loads[0].Cell("upsert"); c.Faulty != (want != "") || c.Faulty && c.Best {
			t.Errorf("%+v", c)
		}
	}
}

// A restart makes requests of all strategies fail: none is out for that, unless it failed far more often.
func TestFailuresOfAllAreNoFault(t *testing.T) {
	t.Parallel()
	r := report(rounds{"upsert": {200}, "token_bucket": {100}, "sliding_log": {300}})
	for i, failures := range []int64{20, 30, 90} {
		r.Runs[i].Errors = map[string]int64{"timeout": failures}
	}
	if a := answer.Of(r); a.Take != "upsert" || len(a.Faults) != 1 || !strings.HasPrefix(a.Faults[0], "sliding_log") {
		t.Errorf("take %q: %q", a.Take, a.Faults)
	}
}

// A denial only because another caller holds the row costs nothing, so it does not make a strategy the best.
func TestContendedDenialsAreNoFeat(t *testing.T) {
	t.Parallel()
	r := report(rounds{"upsert": {200}, "token_bucket": {100}})
	r.Runs[0].Contended = 100
	if a := answer.Of(r); a.Take != "token_bucket" || !a.Loads[0].Cell("upsert").Contended {
		t.Errorf("take %q: %+v", a.Take, a.Loads)
	}
}

func TestOpenLoopsAreComparedByLatency(t *testing.T) {
	t.Parallel()
	r := report(rounds{"upsert": {200}, "token_bucket": {100}})
	r.Scenarios[0].Phases = []scenario.Phase{{Rate: 1, Length: time.Second}}
	for i := range r.Runs {
		r.Runs[i].GrantLatency = result.Latency{Count: 1, P99: 2000 - 1000*float64(i)}
	}
	a := answer.Of(r)
	if a.Take != "token_bucket" || a.Headline != "Take token_bucket: 2.0 × as fast at p99 as upsert, the next best" || !strings.Contains(a.Because, "a p99 of 1 ms beside a p99 of 2 ms") {
		t.Errorf("take %q: %s", a.Take, a.Headline)
	}
}

func TestAuditOfAllRuns(t *testing.T) {
	t.Parallel()
	r := report(rounds{"upsert": {1, 1, 1}})
	r.Runs[0].Audit = nil
	r.Runs[1].Audit = &result.Audit{Audited: 5, OverTokens: 2, DenialsNotDue: 3, DenialSampling: 4}
	if got, want := fmt.Sprint(answer.Of(r).Audit), "{1005 2 3 true 1 1}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCapacityHasTheHighestRate(t *testing.T) {
	t.Parallel()
	if a := answer.Of(resulttest.Capacity()); a.Take != "token_bucket" || a.Headline != "Take token_bucket: 1.3 × the arrivals/s of upsert, the next best" {
		t.Errorf("%q: %q", a.Take, a.Headline)
	}
	over := resulttest.Capacity()
	for i := range over.Capacity {
		over.Capacity[i].Probes[0].OverTokens = 1
	}
	if a := answer.Of(over); a.Take != "" || len(a.Faults) != 4 || a.Faults[0] != "token_bucket, kept, p99 under 10 ms: over by 1 token" || a.Headline != "No strategy can be recommended: all had faults" {
		t.Errorf("%q: %q", a.Take, a.Headline)
	}
}
