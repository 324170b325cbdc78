package text

import (
	"fmt"
	"reflect"
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

func interrupted(r *result.Report) { r.Interrupted = true }

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
		"a tie with one round": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(110)})),
			[]string{"No clear winner between a, b for this load: too close to call. The default, token_bucket (any limit in one round trip, many keys in one call), was not run."}, "ake ",
		},
		"a tie, and the default is among them": {
			fabricated(manyUsers(speeds{"a": one(100), "token_bucket": one(110), "c": one(20)})),
			[]string{"No clear winner between a, token_bucket for this load: too close to call. Take the default, token_bucket (any limit in one round trip, many keys in one call); exact.", "c: 82 % slower"}, "ake a",
		},
		"a tie everywhere": {
			fabricated(manyUsers(speeds{"a": one(100), "token_bucket": one(110)}), hotKey(speeds{"a": one(110), "token_bucket": one(100)})),
			[]string{"No clear winner between a, token_bucket: too close to call in all of 2 loads. Take the default, token_bucket", "One hot key: token_bucket, 100 denials/s (too close to call with a)"}, "ake a",
		},
		"a tie everywhere without the default": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(110), "token_bucket": one(50)}), hotKey(speeds{"a": one(110), "b": one(100), "token_bucket": one(100)})),
			[]string{"No clear winner between a, b: too close to call in all of 2 loads. The default, token_bucket (any limit in one round trip, many keys in one call), is fastest in none of 2 loads, too close to call in 1, behind by 55 % in the other.", "mostly under their limit: b or a, 110"}, "ake ",
		},
		"a tie, and the default is ruled out": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(110), "token_bucket": one(50)}, only("token_bucket", func(run *result.Run) { run.Audit.OverTokens = 1 }))),
			[]string{"No clear winner between a, b for this load: too close to call. The default, token_bucket (any limit in one round trip, many keys in one call), had faults."}, "ake ",
		},
		// The stages do not outweigh what the tables show without them.
		"the stages are ahead of the loads": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(65)}), hotKey(speeds{"a": one(100), "b": one(105)}),
				loadOf("many-granted-stages", result.ByGrants, 1000, speeds{"a": one(100), "b": one(400)})),
			[]string{"Take a: fastest in 1 of 2 loads, too close to call in 1; exact"}, "Take b",
		},
		"the all-rounder is fastest nowhere": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(10), "c": one(80)}), hotKey(speeds{"a": one(10), "b": one(100), "c": one(80)})),
			[]string{"No clear winner for all loads: a is fastest in 1 of 2 loads, behind by 90 % in the other; b is fastest in 1 of 2 loads, behind by 90 % in the other; " +
				"c is fastest in none of 2 loads, behind by 20 %, 20 % in the others. The default, token_bucket", "mostly under their limit: a, 100", "One hot key: b, 100"}, "ake ",
		},
		"fastest the more often, and far behind elsewhere": {
			fabricated(manyUsers(speeds{"a": one(120), "token_bucket": one(100)}), loadOf("few", result.ByGrants, 10, speeds{"a": one(120), "token_bucket": one(100)}), hotKey(speeds{"a": one(10), "token_bucket": one(100)}),
				loadOf("many-granted-stages", result.ByGrants, 1000, speeds{"a": one(900), "token_bucket": one(100)})),
			[]string{"No clear winner for all loads: a is fastest in 2 of 3 loads, behind by 90 % in the other; token_bucket is fastest in 1 of 3 loads, behind by 17 %, 17 % in the others. Take the default, token_bucket"}, "ake a",
		},
		"what is close does not add up": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(88)}), loadOf("few", result.ByGrants, 10, speeds{"a": one(100), "b": one(88)}), hotKey(speeds{"a": one(84), "b": one(100)})),
			[]string{"Take b: fastest in 1 of 3 loads, too close to call in 2; exact"}, "Take a",
		},
		"each under a load of its own": {
			fabricated(manyUsers(speeds{"a": one(100)}), hotKey(speeds{"b": one(100)})),
			[]string{"No clear winner between a, b: no two of them ran under the same load. The default, token_bucket"}, "ake ",
		},
		"all others are contended": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(300), "c": one(200)}, only("c", func(run *result.Run) { run.Contended = 930 })),
				hotKey(speeds{"a": one(100), "b": one(200), "c": one(300)}, only("b", func(run *result.Run) { run.Contended = 930 }))),
			[]string{"Take a: each of the others denied more than 5 % under some load only because another caller held the row; exact"}, "fastest in",
		},
		"no tie with three rounds": {
			fabricated(manyUsers(speeds{"a": {100, 101, 102}, "b": {110, 111, 112}})),
			[]string{"take b: 111 grants/s (×1.1 of a)", "3 rounds differ by at most 2 %; less than that is too close to call."}, "too close to call with",
		},
		"a tie as rounds differ": {
			fabricated(manyUsers(speeds{"a": {100, 101, 115}, "b": {110, 111, 112}})),
			[]string{"between a, b for this load: too close to call", "3 rounds differ by 2 % typically, 15 % at most (a)"}, "",
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
		"a fault with stages rules out": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200)}),
				loadOf("many-granted-stages", result.ByGrants, 1000, speeds{"a": one(1000), "b": one(4000)}, only("b", func(run *result.Run) { run.Audit.OverTokens = 1 }))),
			[]string{"b (OVER by 1; many granted stages)", "take a", "Combining requests and remembering denials made a ×10 as fast: they are on by default."}, "",
		},
		"all had errors, and one answered little else": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200)},
				func(_ *result.Scenario, run *result.Run) { run.Errors = map[string]int64{"timeout": 5} },
				only("b", func(run *result.Run) { run.Errors = map[string]int64{"timeout": 99_000} }))),
			[]string{"Every strategy had faults: a (5 failed); b (99 % failed).", "take a"}, "take b",
		},
		"nothing to show in an open loop": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(100), "c": one(100)},
				func(s *result.Scenario, _ *result.Run) { s.Parameters.Loop = "open" },
				only("a", func(run *result.Run) { run.GrantLatency = result.Latency{} }),
				only("c", func(run *result.Run) { run.GrantLatency.P99 = 3000 }))),
			[]string{"take b: p99 1.50 ms"}, "take a",
		},
		"all had errors": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200), "c": one(400)},
				func(_ *result.Scenario, run *result.Run) { run.Errors = map[string]int64{"timeout": 5} },
				only("c", func(run *result.Run) { run.Audit.OverTokens = 1 }))),
			[]string{"Every strategy had faults: a (5 failed); b (5 failed); c (OVER by 1, 5 failed). What follows leaves out only those that decided wrongly or failed far more often.", "take b"}, "take c",
		},
		"all decided wrongly": {
			fabricated(manyUsers(speeds{"a": one(100)}, only("a", func(run *result.Run) { run.Audit.OverTokens = 1 }))),
			[]string{"None can be recommended, all had faults: a (OVER by 1)."}, "take",
		},
		"stages": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(50)}), hotKey(speeds{"a": one(100), "b": one(50)}),
				loadOf("many-granted-stages", result.ByGrants, 1000, speeds{"a": one(80), "b": one(50)}),
				loadOf("hot-denied-stages", result.ByDenials, 1, speeds{"a": one(31000), "b": one(50)})),
			[]string{"Take a: fastest in 2 of 2", "Combining requests and remembering denials made a ×0.80 to ×310 as fast; slower on many granted."}, "",
		},
		"contention spoils the fastest": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(300)}), hotKey(speeds{"a": one(100), "b": one(300)}, only("b", func(run *result.Run) { run.Contended = 930 }))),
			[]string{"Take a: fastest in 1 of 2 loads, behind by 67 % in the other", "hot key: a, 100 denials/s (b ×3.0, but 93 % contended)", "b: ×3.0 on many granted, denied 93 % (hot denied) because another caller held the row"}, "Take b",
		},
		"costs": {
			fabricated(manyUsers(speeds{"a": one(300), "b": one(100)}, only("b", func(run *result.Run) { run.RoundTrips, run.WALBytesPerDecision = 2000, new(400.0) }))),
			[]string{"1 round trip (b: 2), least WAL (100 B)", "b: 67 % slower, 2 round trips, most WAL (400 B)."}, "",
		},
		"an open loop": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(100), "c": one(100)},
				func(s *result.Scenario, _ *result.Run) { s.Parameters.Loop = "open" }, only("b", func(run *result.Run) { run.GrantLatency.P99 = 1000 }))),
			[]string{"For this load take b: p99 1.00 ms (a 1.50 ms)", "a: 33 % slower. c: 33 % slower."}, "grants/s",
		},
		"one strategy": {
			fabricated(manyUsers(speeds{"a": one(300)}), hotKey(speeds{"a": one(100)})),
			[]string{"Only a was run, so there is nothing to compare it with; exact.", "under their limit: a, 300 grants/s, p99 1.50 ms.", "One hot key: a, 100 denials/s."}, "Take",
		},
		"one strategy, one load": {
			fabricated(manyUsers(speeds{"a": one(300)})), []string{"Only a was run, so there is nothing to compare it with; exact. It did 300 grants/s, p99 1.50 ms."}, "Take",
		},
		"published ones are not to be had": {
			fabricated(manyUsers(speeds{"a": one(100), "published_x": one(300)})), []string{"take a: 100 grants/s", "published_x: ×3.0 on many granted."}, "take published",
		},
		"published ones alone": {
			fabricated(manyUsers(speeds{"published_x": one(300)})), []string{"Only published_x was run"}, "",
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
		"kept the bound by granting little": {
			fabricated(loadOf("write-up", result.ByDecisions, 1, speeds{"a": one(100), "b": one(100)}, func(s *result.Scenario, run *result.Run) {
				s.AtMost, run.Granted, run.Possible = 300, 297, 298
				if run.Strategy == "b" {
					run.Granted = 100
				}
			})),
			[]string{"At most 300 tokens: all kept to it.", "a granted 297 of the 298"}, "a, b granted",
		},
		"a tie that the stages decide": {
			fabricated(manyUsers(speeds{"a": {100, 101, 102}, "b": {99, 100, 101}}), hotKey(speeds{"a": {100, 101, 102}, "b": {99, 100, 101}}),
				loadOf("many-granted-stages", result.ByGrants, 1000, speeds{"a": {90, 91, 92}, "b": {500, 501, 502}})),
			[]string{"Take b: no other is clearly faster in any of 2 loads, and it is ahead when requests are combined"}, "Take a",
		},
		"all kept the bound": {
			fabricated(loadOf("write-up", result.ByDecisions, 1, speeds{"a": one(100), "b": one(100)}, func(s *result.Scenario, _ *result.Run) { s.AtMost = 300 })),
			[]string{"At most 300 tokens: all kept to it."}, "",
		},
		"interrupted": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(200)}), hotKey(speeds{"a": one(100)}), interrupted),
			[]string{"Take b", "One hot key: a, 100 denials/s (no other was run)", "Interrupted, so all of this rests on a part of the runs."}, "",
		},
		"not audited": {
			fabricated(manyUsers(speeds{"a": one(100), "b": one(300)}, func(_ *result.Scenario, run *result.Run) { run.Audit = nil })), []string{"not audited"}, "exact",
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

// The headline of the report says in one line what the advice says first.
func TestHeadline(t *testing.T) {
	t.Parallel()
	one := func(f float64) []float64 { return []float64{f} }
	bounded := func(s *result.Scenario, _ *result.Run) { s.AtMost = 300 }
	for want, r := range map[string]result.Report{
		"":                             {},
		"Take b":                       fabricated(manyUsers(speeds{"a": one(100), "b": one(200)}), hotKey(speeds{"a": one(100), "b": one(300)})),
		"For this load take b":         fabricated(manyUsers(speeds{"a": one(100), "b": one(300)})),
		"Only a was run":               fabricated(manyUsers(speeds{"a": one(100)})),
		"No clear winner between a, b": fabricated(manyUsers(speeds{"a": one(100), "b": one(110)})),
		"No clear winner: take the default, token_bucket": fabricated(manyUsers(speeds{"a": one(100), "token_bucket": one(110), "c": one(20)})),
		"At most 300 tokens: all kept to it":              fabricated(loadOf("write-up", result.ByDecisions, 1, speeds{"a": one(100), "b": one(100)}, bounded)),
		"b keeps p99 under 10.0 ms up to the highest rate, 900/s": {Capacity: []result.Capacity{
			{Strategy: "a", P99Bound: 10_000, Rate: 800}, {Strategy: "b", P99Bound: 10_000, Rate: 900},
		}},
	} {
		if got := Headline(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAdviceIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	of := speeds{"a": {100, 90}, "b": {100, 90}, "c": {100, 90}, "d": {50}}
	r := fabricated(manyUsers(of), hotKey(of))
	first := Advice(r)
	for range 20 {
		if got := Advice(r); !reflect.DeepEqual(got, first) {
			t.Fatalf("%q, before %q", got, first)
		}
	}
}

// Names decide nothing: if two strategies swap theirs, so does the advice.
func TestAdviceIsBlindToNames(t *testing.T) {
	t.Parallel()
	swap := func(s string) string {
		return strings.NewReplacer("token_bucket", "upsert", "upsert", "token_bucket").Replace(s)
	}
	r := fabricated(manyUsers(speeds{"a": {100}, "b": {200}}), hotKey(speeds{"a": {90}, "b": {30}}))
	for i := range r.Runs {
		r.Runs[i].Strategy = map[string]string{"a": "token_bucket", "b": "upsert"}[r.Runs[i].Strategy]
	}
	said := fmt.Sprint(Advice(r))
	for i := range r.Runs {
		r.Runs[i].Strategy = swap(r.Runs[i].Strategy)
	}
	if got := fmt.Sprint(Advice(r)); swap(got) != said {
		t.Errorf("with names swapped\n%s\nbefore\n%s", got, said)
	}
}
