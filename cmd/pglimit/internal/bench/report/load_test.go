package report

import (
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// plainSpaces makes the spaces that do not break ordinary ones.
func plainSpaces(text string) string { return strings.ReplaceAll(text, "\u00a0", " ") }

func TestLoadInWords(t *testing.T) {
	t.Parallel()
	closed := result.Parameters{Loop: "closed", Callers: 1, Instances: 1, Conns: 4, Keys: 20_000, Distribution: "zipf", Exponent: 1.1, Limit: "10/1s", Cost: 1, DurationSeconds: 2}
	open := result.Parameters{
		Loop: "open", Arrivals: "constant", RPS: 55, Phases: []result.Phase{{From: 10, To: 100, Seconds: 60}, {From: 100, To: 100, Seconds: 30}},
		Callers: 256, Instances: 2, Conns: 8, Keys: 1, Limit: "10/1s", Cost: 1, Costs: []result.Cost{{Tokens: 1, Share: 0.9}, {Tokens: 5, Share: 0.1}},
		DurationSeconds: 90, Combining: true, Leases: true, AddedLatencySeconds: 0.002, LockedShare: 0.01, RestartAfterSeconds: 5,
	}
	for _, c := range []struct {
		p       result.Parameters
		explain bool
		want    string
	}{
		{closed, false, "1 caller on 1 instance. The limit of 20,000 keys, zipf 1.1: 10/1s."},
		{result.Parameters{Loop: "open", RPS: 55, Instances: 1}, false, "Requests arrive at 55/s, to 1 instance."},
		{closed, true, "Closed loop: 1 caller on 1 instance, each asking again when it has its answer. The limit of 20,000 keys, zipf 1.1: 10/1s."},
		{open, true, "Open loop: requests arrive on a schedule, whether or not earlier ones have been answered: 10 to 100/s for 60 s, then 100/s for 30 s (constant), to 2 instances." +
			" The limit of 1 key: 10/1s, tokens asked for: 1 for 90 % of the requests, 5 for 10 % of the requests. The stages that are on: combining, leases." +
			" Trouble on purpose: each round trip takes 2 ms more, 1 % of the keys are held locked, the server restarts after 5 s."},
	} {
		if got := plainSpaces(words(c.p, c.explain)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	rows := loads([]result.Scenario{{Name: "mine", Parameters: open}})
	if got := rows[0]; got.Title != "Mine" || got.Stages != "combining, leases" || !strings.HasPrefix(got.Trouble, "each round trip") {
		t.Errorf("got %+v", got)
	}
}

// Where the load changes, or the server restarts, the pictures over time have a mark.
func TestChangesOfTheLoadAreMarked(t *testing.T) {
	t.Parallel()
	a := &album{scenario: result.Scenario{Parameters: result.Parameters{
		Phases:              []result.Phase{{From: 5, To: 5, Seconds: 60}, {From: 5, To: 50, Seconds: 30}, {From: 50, To: 50, Seconds: 10}},
		RestartAfterSeconds: 70,
	}}}
	want := []chart.Change{{X: 0, Label: "5/s"}, {X: 60, Label: "5 to 50/s"}, {X: 90, Label: "50/s"}, {X: 70, Label: "restart"}}
	got := a.changes()
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
}
