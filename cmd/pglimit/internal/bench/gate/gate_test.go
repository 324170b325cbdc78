package gate

import (
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// sample run: 90 granted, 10 denied, of which 5 contended, and 1 failed in each hundred.
func sample() result.Run {
	return result.Run{
		Strategy: "token_bucket", Scenario: "many-keys-granted", Round: 1,
		Decisions: 99_000, DecisionsPerSecond: 99_000, GrantsPerSecond: 89_000, DenialsPerSecond: 10_000,
		Allowed: 89_000, Denied: 10_000, Contended: 4950, Granted: 178_000, Errors: map[string]int64{"timeout": 998, result.Deadlock: 2},
		Latency:      result.Latency{Count: 99_000, Mean: 900, P50: 850, P90: 2000, P99: 5000, P999: 9000, P9999: 20_000, Max: 1_500_000},
		GrantLatency: result.Latency{Count: 89_000, P99: 7210}, DenialLatency: result.Latency{Count: 10_000, P99: 300},
		RoundTrips: 198_000, WALBytesPerDecision: new(230.5),
		Audit: &result.Audit{OverTokens: 0, DenialsNotDue: 3},
	}
}

func reportOf(runs ...result.Run) result.Report { return result.Report{Runs: runs} }

func TestConditions(t *testing.T) {
	t.Parallel()
	for text, broken := range map[string]string{
		"p99(grant)>=5ms":        "p99(grant) is 7.21ms, which is >= 5ms",
		"p99(grant)>=8ms":        "",
		" p99 (grant) > 7.21ms ": "",
		"p99(denial) >= 300us":   "p99(denial) is 300µs, which is >= 300us",
		"p99(denial)>300us":      "",
		"p99 >= 4.99ms":          "p99 is 5ms, which is >= 4.99ms",
		"p90>=1ms":               "p90 is 2ms, which is >= 1ms",
		"decisions/s<99e3":       "",
		"grants/s<90000":         "grants/s is 89,000, which is < 90000",
		"denials/s>=10000":       "denials/s is 10,000, which is >= 10000",
		"over!=0":                "",
		"not_due!=0":             "not_due is 3, which is != 0",
		"errors>1%":              "",
		"errors>=1 %":            "errors is 1 %, which is >= 1 %",
		"failed>=1000":           "failed is 1,000, which is >= 1000",
		"deadlocks!=0":           "deadlocks is 2, which is != 0",
		"contended>=5%":          "contended is 5 %, which is >= 5%",
		"trips/decision>1":       "trips/decision is 2, which is > 1",
		"wal/decision>=200":      "wal/decision is 230.5, which is >= 200",
		"wal/decision>230.5":     "",
		"granted>300":            "granted is 178,000, which is > 300",
	} {
		c, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want := ""
		if broken != "" {
			want = "token_bucket, many-keys-granted: " + broken
		}
		got := ""
		for _, v := range c.Check(reportOf(sample())) {
			got += v
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// A median would hide the round in which it happened.
func TestOneRunIsEnough(t *testing.T) {
	t.Parallel()
	fast := sample()
	fast.GrantLatency.P99 = 4000
	slow := sample()
	slow.Round = 2
	c, err := Parse("p99(grant)>=5ms")
	if err != nil {
		t.Fatal(err)
	}
	got := c.Check(reportOf(fast, slow, fast))
	if len(got) != 1 || got[0] != "token_bucket, many-keys-granted, round 2: p99(grant) is 7.21ms, which is >= 5ms" {
		t.Errorf("%v", got)
	}
}

// A figure that is not known does not show that all is well.
func TestUnknownIsNotWell(t *testing.T) {
	t.Parallel()
	empty := result.Run{Strategy: "a", Scenario: "s"}
	onlyGrants := result.Run{Strategy: "a", Scenario: "s", Decisions: 1, Allowed: 1}
	onlyDenials := result.Run{Strategy: "a", Scenario: "s", Decisions: 1, Denied: 1}
	for _, c := range []struct {
		text, want string
		run        result.Run
	}{
		{"over!=0", "over is not known", empty},
		{"not_due!=0", "not_due is not known", empty},
		{"wal/decision>=1e6", "wal/decision is not known", empty},
		{"trips/decision>=2", "is not known", empty},
		{"contended>=1%", "is not known", empty},
		{"p99>=1s", "is not known", empty},
		{"p99(denial)>=1s", "is not known", empty},
		{"p99(grant)>=1s", "p99(grant) is not known", onlyDenials},
		{"p99(denial)>=1s", "", onlyGrants}, // no denial was slow
	} {
		condition, err := Parse(c.text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, v := range condition.Check(reportOf(c.run)) {
			got = v
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.text, got, c.want)
		}
	}
	c, err := Parse("over>0")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Check(result.Report{}); len(got) != 1 || !strings.Contains(got[0], "over is not known: nothing was run") {
		t.Errorf("a report without runs: %v", got)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"p99(grant)":        "there is no operator: it must be like",
		"":                  "there is no operator",
		"p99<>5ms":          `there is no operator "<>", only < <= = >= > !=`,
		"p98<5ms":           `there is no metric "p98", only decisions/s grants/s denials/s p50 p90 p99 p99.9 p99.99 max mean p50(grant) p90(grant)`,
		"p99(all)<5ms":      `there is no metric "p99(all)"`,
		"over(grant)=0":     `there is no metric "over(grant)"`,
		"p99<5":             `the value "5" must be a duration, such as 5ms or 300us`,
		"p99<-5ms":          "must be a duration",
		"errors<200%":       `the value "200%" must be a share, such as 1% or 0.01`,
		"errors<5ms":        "must be a share",
		"over=none":         `the value "none" must be a number, such as 0, 1.5 or 20000`,
		"granted<=300 each": "must be a number",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"`+text+`": `) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
