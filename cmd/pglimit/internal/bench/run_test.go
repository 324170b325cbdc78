package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
)

func named(name string) scenario.Scenario {
	s := scenario.Custom()
	s.Name = name
	return s
}

// jobsOf are the jobs in words: scenario, strategy, round.
func jobsOf(t *testing.T, b bench) (words []string) {
	t.Helper()
	jobs, err := b.jobs()
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		words = append(words, fmt.Sprintf("%s %s %d", j.scenario.Name, j.subject.Strategy.Name(), j.round))
	}
	return words
}

func wantJobs(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// All scenarios and strategies run, and then all of them again, but for those that run once.
func TestRoundsRunInTurn(t *testing.T) {
	t.Parallel()
	once := named("once")
	once.Once = true
	b := bench{
		config:     Config{Scenarios: []scenario.Scenario{once, named("plain")}, Rounds: 2},
		strategies: []pglimit.Strategy{fake{name: "a"}, fake{name: "b"}},
	}
	wantJobs(t, jobsOf(t, b), "once a 1", "once b 1", "plain a 1", "plain b 1", "plain a 2", "plain b 2")
}

// The write-up's statements have no stages, so the staged scenarios would show the same
// figures again.
func TestPublishedStatementsAreLeftOutWhereThereAreStages(t *testing.T) {
	t.Parallel()
	plain, staged := named("plain"), named("staged")
	staged.StagesOf = "plain"
	theirs := published.Strategies("schema")[0]
	limit := pglimit.Every(1e9)
	plain.Limit, staged.Limit = limit, limit
	b := bench{
		config:     Config{Scenarios: []scenario.Scenario{plain, staged}, Rounds: 1},
		strategies: []pglimit.Strategy{fake{name: "a"}, theirs},
	}
	wantJobs(t, jobsOf(t, b), "plain a 1", "plain "+theirs.Name()+" 1", "staged a 1")
}

// Each strategy runs under the limit that it can keep, and one that can keep none is
// heard of before anything is measured.
func TestJobsAreOfSubjects(t *testing.T) {
	t.Parallel()
	single := fake{name: "single", check: func(l pglimit.Limit) error {
		if l.Burst > 1 {
			return errors.New("a burst")
		}
		return nil
	}}
	b := bench{config: Config{Scenarios: []scenario.Scenario{named("one")}, Rounds: 1}, strategies: []pglimit.Strategy{single}}
	jobs, err := b.jobs()
	if err != nil || len(jobs) != 1 || jobs[0].subject.Limit.Burst != 1 {
		t.Errorf("%+v, %v; want one with a burst of 1", jobs, err)
	}
	b.strategies = append(b.strategies, fake{name: "none", check: func(pglimit.Limit) error { return errors.New("never") }})
	if jobs, err := b.jobs(); err == nil || jobs != nil || !strings.Contains(err.Error(), "none cannot run under 20/1s: never") {
		t.Errorf("%+v, %v; want an error and no jobs", jobs, err)
	}
}

func TestConfigErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	valid := func() Config {
		return Config{Scenarios: []scenario.Scenario{named("one")}, Strategies: []pglimit.Strategy{fake{name: "a"}}, Rounds: 1}
	}
	for _, change := range []func(*Config){
		func(*Config) {}, func(c *Config) { c.Rounds = maxRounds }, func(c *Config) { c.AuditDecisions = 16 * 64 }, // of 64 callers
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	for want, change := range map[string]func(*Config){
		"--strategies names none":                         func(c *Config) { c.Strategies = nil },
		"--scenario names none":                           func(c *Config) { c.Scenarios = nil },
		"--repeat is 0: it must be from 1 to 1000":        func(c *Config) { c.Rounds = 0 },
		"--repeat is 1001":                                func(c *Config) { c.Rounds = 1001 },
		"--audit is -1: it must be from 0 to":             func(c *Config) { c.AuditDecisions = -1 },
		"--audit is 100000001":                            func(c *Config) { c.AuditDecisions = maxAudit + 1 },
		"--audit is 1023: it must be 0, or at least 1024": func(c *Config) { c.AuditDecisions = 1023 },
		"keys is 0": func(c *Config) { c.Scenarios[0].Keys = 0 },
	} {
		c := valid()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s...", err, want)
		}
	}
}

// The statements of the write-up run on the tables of this bench.
func TestPublishedStatementsHaveTheirOwnTables(t *testing.T) {
	t.Parallel()
	all := published.Strategies("")
	b := bench{id: "0123abcd", strategies: []pglimit.Strategy{all[2], fake{name: "ours"}, all[0]}}
	b.own()
	if got := b.strategies; got[0].Name() != all[2].Name() || got[1].Name() != "ours" || got[2].Name() != all[0].Name() {
		t.Fatalf("%v: want the same in the same order", got)
	}
	if table := scenario.TableOf(b.strategies[0]); !strings.HasPrefix(table, "pglimit_published_0123abcd.") {
		t.Errorf("its table is %s", table)
	}
}
