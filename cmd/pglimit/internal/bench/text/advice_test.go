package text

import (
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// speeds of the strategies under a load, a round each.
type speeds map[string][]float64

// fabricated is a report with these loads, in this order.
func fabricated(loads ...func(*result.Report)) (r result.Report) {
	for _, add := range loads {
		add(&r)
	}
	return r
}

// order in which strategies run.
var order = []string{"a", "b", "c", "d", "token_bucket", "published_x"}

func loadOf(name, by string, keys int, of speeds, changes ...func(*result.Scenario, *result.Run)) func(*result.Report) {
	return func(r *result.Report) {
		s := result.Scenario{Name: name, Title: strings.ReplaceAll(name, "-", " "), CompareBy: by, Parameters: result.Parameters{Keys: keys}}
		if base, found := strings.CutSuffix(name, "-stages"); found {
			s.StagesOf, s.Parameters.Combining, s.Parameters.Memory = base, true, true
		}
		for _, strategy := range order {
			for i, f := range of[strategy] {
				run := result.Run{
					Scenario: name, Strategy: strategy, Round: i + 1, Decisions: 1000, RoundTrips: 1000, Allowed: 500, Denied: 500,
					Errors: map[string]int64{}, Audit: &result.Audit{Verdict: result.VerdictExact}, WALBytesPerDecision: new(100.0),
					GrantsPerSecond: f, DenialsPerSecond: f, DecisionsPerSecond: f, Deadlocks: new(int64(0)),
					GrantLatency: result.Latency{Count: 1, P99: 1500},
				}
				for _, change := range changes {
					change(&s, &run)
				}
				r.Runs = append(r.Runs, run)
			}
		}
		r.Scenarios = append(r.Scenarios, s)
	}
}

func manyUsers(of speeds, changes ...func(*result.Scenario, *result.Run)) func(*result.Report) {
	return loadOf("many-granted", result.ByGrants, 1000, of, changes...)
}

func hotKey(of speeds, changes ...func(*result.Scenario, *result.Run)) func(*result.Report) {
	return loadOf("hot-denied", result.ByDenials, 1, of, changes...)
}

// only changes the runs of one strategy.
func only(strategy string, change func(*result.Run)) func(*result.Scenario, *result.Run) {
	return func(_ *result.Scenario, run *result.Run) {
		if run.Strategy == strategy {
			change(run)
		}
	}
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	one := func(f float64) []float64 { return []float64{f} }
	for name, c := range map[string]struct {
		report result.Report
		want   []string // each in one of the paragraphs, whose order is theirs
		never  string
	}{
		"nothing measured": {result.Report{}, nil, "Take"},
		"one wins": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200)}), hotKey(speeds{"a": one(100), "b": one(300)})),
			[]string{
				"Take b: fastest in 2 of 2 loads; exact.", "mostly under their limit: b, 200 grants/s (×2.0 of a), p99 1.50 ms",
				"One hot key: b, 300 denials/s (×3.0 of a).", "a: 50 to 67 % slower.", "One round: spread not known (--repeat 3)",
			}, "too close to call with",
		},
		"another is the better for a load": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(120)}), hotKey(speeds{"a": one(900), "b": one(300)})),
			[]string{"Take a: fastest in 1 of 2 loads, behind by 17 % in the other", "mostly under their limit: b, 120 grants/s", "One hot key: a, 900 denials/s", "b: ×1.2 on many granted, up to 67 % slower"},
			"",
		},
		"a tie, and the default is among them": {
			fabricated(manyUsers(speeds{"a": one(100), "token_bucket": one(110), "c": one(20)})),
			[]string{"No clear winner between a, token_bucket for this load: too close to call. Take the default, token_bucket (any limit in one round trip, many keys in one call); exact.", "c: 82 % slower"}, "ake a",
		},
		"faults rule out, and come first": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200), "c": one(300), "d": one(400)},
				only("b", func(run *result.Run) { run.Audit.OverTokens = 3 }),
				only("c", func(run *result.Run) { run.Errors = map[string]int64{"40P01": 1000}; *run.Deadlocks = 7 }),
				only("d", func(run *result.Run) { run.Audit.DenialsNotDue = 1 }),
			)),
			[]string{"Ruled out by faults: b (OVER by 3); c (7 deadlocks, 50 % failed); d (1 denial not due).", "take a: 100 grants/s (no other without faults)"},
			"take b",
		},
		"all decided wrongly": {
			fabricated(manyUsers(speeds{"a": one(100)}, only("a", func(run *result.Run) { run.Audit.OverTokens = 1 }))),
			[]string{"None can be recommended, all had faults: a (OVER by 1)."}, "take",
		},
		"contention spoils the fastest": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(300)}), hotKey(speeds{"a": one(100), "b": one(300)}, only("b", func(run *result.Run) { run.Contended = 930 }))),
			[]string{"Take a: fastest in 1 of 2 loads, behind by 67 % in the other", "hot key: a, 100 denials/s (b ×3.0, but 93 % contended)", "b: ×3.0 on many granted, denied 93 % (hot denied) because another caller held the row"}, "Take b",
		},
		"the write-up's bound": {
			fabricated(loadOf("write-up", result.ByDecisions, 1, speeds{"a": one(100), "b": one(100), "c": one(100)}, func(s *result.Scenario, run *result.Run) {
				s.AtMost, run.Granted, run.Possible = 300, 297, 298
				if run.Strategy == "c" {
					run.Granted = 312
				}
			})),
			[]string{
				"Ruled out by faults: c (12 too many granted)", "At most 300 tokens: kept by a, b; not by c (by 12).",
				"a, b granted 297 of the 298 that a perfect limiter grants, without a failure: at this load any of them will do",
			}, "ake a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Advice(c.report)
			said := strings.Join(got, "\n")
			at := 0
			for _, want := range c.want {
				i := strings.Index(said[at:], want)
				if i < 0 {
					t.Fatalf("it does not say %q, or not in this order, but\n%s", want, said)
				}
				at += i
			}
			if c.never != "" && strings.Contains(said, c.never) {
				t.Errorf("it says %q:\n%s", c.never, said)
			}
		})
	}
}
