package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/pglimit"
)

// configured is what the flags say.
func configured(t *testing.T, args ...string) bench.Config {
	t.Helper()
	config, err := benchConfig(args...)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func benchConfig(args ...string) (bench.Config, error) {
	b := &benchFlags{own: scenario.Custom()}
	cmd := &cobra.Command{Use: "bench"}
	b.addTo(cmd, func(*pflag.FlagSet) {})
	if err := cmd.ParseFlags(args); err != nil {
		return bench.Config{}, err
	}
	return b.config()
}

func TestBenchFlagsAreTheLoad(t *testing.T) {
	t.Parallel()
	got := configured(t, strings.Fields("--strategies upsert,token_bucket --limit 1000/1s --burst 10000 --keys 100 --callers 8 --duration 3s --rps 50 --set latency=2ms --durability durable")...)
	want := scenario.Custom()
	want.Limit, want.Keys, want.Callers, want.Durability = pglimit.PerSecond(1000).WithBurst(10000), 100, 8, pglimit.Durable
	want.Phases, want.Latency = []scenario.Phase{{Rate: 50, Length: 3 * time.Second}}, 2*time.Millisecond
	if len(got.Scenarios) != 1 || !reflect.DeepEqual(got.Scenarios[0], want) || got.Rounds != 1 {
		t.Errorf("%+v\nwant %+v", got.Scenarios, want)
	}
	if len(got.Strategies) != 2 || got.Strategies[0].Name() != "upsert" || got.Strategies[1].Name() != "token_bucket" {
		t.Errorf("strategies %v", got.Strategies)
	}
}

// Without a word of the load it is the suite, which is repeated; a flag of the load changes
// scenarios that are named, and is a load of its own otherwise.
func TestBenchChoosesScenarios(t *testing.T) {
	t.Parallel()
	plan := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(plan, []byte("name: mine\nkeys: 7\n---\nname: other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	suite := "many-keys-granted hot-key-granted hot-key-denied partners many-keys-granted-staged hot-key-granted-staged hot-key-denied-staged"
	for _, c := range []struct {
		args   string
		names  string
		rounds int
		keys   int // of the first
	}{
		{"", suite, bench.DefaultRounds, 1000},
		{"--seed 2 --strategies upsert --durability durable", suite, bench.DefaultRounds, 1000},
		{"--scenario suite --keys 5 --repeat 2", suite, 2, 5},
		{"--keys 5", "custom", 1, 5},
		{"--scenario hot-key-denied,partners", "hot-key-denied partners", bench.DefaultRounds, 1},
		{"--scenario partners --repeat 4 --keys 3", "partners", 4, 3},
		{"--plan " + plan, "mine other", 1, 7},
		{"--plan " + plan + " --keys 9", "mine other", 1, 9},
	} {
		got := configured(t, strings.Fields(c.args)...)
		var names []string
		for _, s := range got.Scenarios {
			names = append(names, s.Name)
		}
		if strings.Join(names, " ") != c.names || got.Rounds != c.rounds || got.Scenarios[0].Keys != c.keys {
			t.Errorf("bench %s: %s, %d rounds, %d keys; want %s, %d, %d", c.args, names, got.Rounds, got.Scenarios[0].Keys, c.names, c.rounds, c.keys)
		}
	}
}

// Of one token per 2 s there are 2 within 3 s. Under another limit, or with more users, the
// criterion would find fault with strategies that have none.
func TestBenchCriterionIsThatOfTheLoad(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int64{
		"": 300, "--duration 42s": 21, "--duration 3s": 2, "--duration 11s": 6,
		"--limit 1/1s": 0, "--burst 5": 0, "--keys 2": 0,
	} {
		if s := configured(t, strings.Fields("--scenario write-up "+args)...).Scenarios[0]; s.AtMost != want {
			t.Errorf("bench --scenario write-up %s: at most %d, want %d", args, s.AtMost, want)
		}
	}
}

func TestBenchRunsPublishedStatementsByName(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"--strategies upsert,published_exclusion": 2, "--strategies published_exclusion --published": 3, "--strategies all": len(strategyNames()),
		"--published": len(bucketNames()) + 3, "--strategies upsert,upsert": 1,
	} {
		if got := configured(t, strings.Fields(args)...).Strategies; len(got) != want {
			t.Errorf("%s runs %v", args, got)
		}
	}
}

func TestBenchRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--strategies nosuch":              `there is no "nosuch", only token_bucket, upsert, for_update_nowait, exclusion_range, sliding_window, sliding_log, warm_up, and of the write-up published_`,
		"--strategies upsert --limit none": `--limit is "none": `,
		"--keys many":                      "is not a whole number",
		"--keys 0":                         "keys is 0: it must be from 1 to",
		"--rps -1":                         "rps is -1",
		"--set speed=5":                    `--set is "speed=5": there is no field speed in a scenario`,
		"--set speed":                      `--set is "speed": it must be a field of a plan and its value, such as conns=32`,
		"extra":                            `there is no command "pglimit bench extra"`,
		"--scenario nosuch":                `--scenario: there is no "nosuch", only suite, many-keys-granted`,
		"--scenario suite --plan x.yaml":   "name one of them",
		"--plan nosuch.yaml":               "--plan: open nosuch.yaml",
		"--scenario suite --set name=x":    "there are two loads with the name \"x\"",
		"--scenario suite --set title=x":   "there are two loads with the name \"hot-key-granted\" or the title \"x\": each needs its own",
		"--scenario partners,partners":     "there are two loads with the name \"partners\"",
		"--fail-if p99<fast":               "--fail-if: ",
		"compare one.json":                 "compare needs a NEW.json",
		"compare one.json two.json":        "one.json",
		"capacity --p99 1us":               "--p99 is 1µs",
		"capacity --p99 0s":                "--p99 is 0s",
		"capacity --rps 5":                 "unknown flag: --rps",
	} {
		code, stdout, stderr := call(t.Context(), append([]string{"bench"}, strings.Fields(args)...)...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("bench %s: exit code %d, stdout %q, stderr %q; want one line with %q", args, code, stdout, stderr, want)
		}
	}
}

// DATABASE_URL may be that of production: nothing connects there unless somebody says yes.
func TestBenchRefusesAServerElsewhere(t *testing.T) {
	t.Parallel()
	for url, elsewhere := range map[string]bool{
		"postgres://u:secret@db.invalid:5432/app":               true,
		"postgres://u:secret@localhost:1,db.invalid:5432/app":   true,
		"postgres://u:secret@127.0.0.1:1,[::1]:1/app":           false,
		"host=/nosuch user=u password=secret dbname=app port=1": false,
	} {
		for _, command := range []string{"bench", "bench capacity"} {
			args := append(strings.Fields(command), "--database-url", url)
			code, _, stderr := call(t.Context(), args...)
			if asks := strings.Contains(stderr, "on this machine: --yes"); code != 2 || asks != elsewhere ||
				asks != strings.Contains(stderr, "pglimit: the database app on ") || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "secret") {
				t.Errorf("%s of %s: %d, %s", command, url, code, stderr)
			}
			if _, _, stderr := call(t.Context(), append(args, "--yes")...); strings.Contains(stderr, "--yes") || !strings.Contains(stderr, "cannot connect") {
				t.Errorf("%s of %s with --yes: %s", command, url, stderr)
			}
		}
	}
}

// What is fetched, and why it cannot be, is said in a line each; --no-download fetches nothing.
func TestBenchFetchesPostgres(t *testing.T) {
	home := t.TempDir()
	if err := os.Chmod(filepath.Dir(home), 0o755); err != nil { // or root takes /var/cache
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"DATABASE_URL": "", "PGHOST": "", "PGDATABASE": "", "HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home,
		pgserver.EnvSource: string(pgserver.Embedded), pgserver.EnvRepository: "http://127.0.0.1:1",
	} {
		t.Setenv(name, value)
	}
	code, _, stderr := call(t.Context(), "bench")
	said := strings.Split(strings.TrimSpace(stderr), "\n")
	if code != 2 || len(said) != 3 || !strings.HasPrefix(said[1], "pglimit: fetching PostgreSQL 17.") ||
		!strings.Contains(said[2], "cannot be fetched: unable to connect to http://127.0.0.1:1): install PostgreSQL or Docker, or name a database with --database-url") {
		t.Errorf("exit code %d, it says %s", code, stderr)
	}
	b := &benchFlags{noDownload: true}
	if from := b.sources(); len(from) == 0 || slices.Contains(from, pgserver.Embedded) {
		t.Errorf("with --no-download it starts a server from %v", from)
	}
}

// That a throwaway server is left running must be heard of.
func TestBenchSaysThatItsServerWasNotRemoved(t *testing.T) {
	t.Parallel()
	place := benchPlace{remove: func() error { return errors.New("it will not die") }}
	for name, ended := range map[string]error{"well": nil, "by Ctrl-C": context.Canceled, "over the limit": exitDenied} {
		var stderr bytes.Buffer
		err := ended
		(&app{stderr: &stderr}).leave(place, &err)
		heard := stderr.String()
		if ended == nil && err != nil {
			heard = err.Error() // main prints it
		} else if !errors.Is(err, ended) {
			t.Errorf("a bench that ended %s now ended with %v", name, err)
		}
		if !strings.Contains(heard, "cannot remove the throwaway Postgres: it will not die") {
			t.Errorf("a bench that ended %s says %q", name, heard)
		}
	}
}

// Flags build on one another, in whatever order they are given.
func TestBenchFlagsBuildOnOneAnother(t *testing.T) {
	t.Parallel()
	plan := filepath.Join(t.TempDir(), "plan.yaml")
	text := "name: a\nlimit: 10/1s\ndurability: durable\nwarmup: 4s\nphases: [{rate: 5, duration: 2s}, {rate: 9, duration: 6s}]\n"
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	phases := func(first, second time.Duration) []scenario.Phase {
		return []scenario.Phase{{Rate: 5, Length: first}, {Rate: 9, Length: second}}
	}
	for _, c := range []struct {
		args  string
		check func(scenario.Scenario) bool
	}{
		{"--burst 7 --limit 50/1s", func(s scenario.Scenario) bool { return s.Limit == pglimit.PerSecond(50).WithBurst(7) }},
		{"--burst 7", func(s scenario.Scenario) bool { return s.Limit == pglimit.PerSecond(10).WithBurst(7) }},
		{"--keys 5", func(s scenario.Scenario) bool {
			return s.Durability == pglimit.Durable && reflect.DeepEqual(s.Phases, phases(2*time.Second, 6*time.Second))
		}},
		{"--durability relaxed --no-memory", func(s scenario.Scenario) bool { return s.Durability == pglimit.Relaxed && s.Stages.NoMemory }},
		{"--duration 4s", func(s scenario.Scenario) bool { // and the warm-up stays
			return reflect.DeepEqual(s.Phases, phases(time.Second, 3*time.Second)) && s.Warmup == 4*time.Second
		}},
		{"--duration 4s --set warmup=1s", func(s scenario.Scenario) bool { return s.Warmup == time.Second }},
		{"--duration 4s --rps 70", func(s scenario.Scenario) bool {
			return reflect.DeepEqual(s.Phases, []scenario.Phase{{Rate: 70, Length: 4 * time.Second}})
		}},
	} {
		if s := configured(t, strings.Fields("--plan "+plan+" "+c.args)...).Scenarios[0]; !c.check(s) {
			t.Errorf("bench %s: %+v", c.args, s)
		}
	}
}

func TestBenchAuditsAndSeries(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{"": bench.DefaultAudit, "--audit 5000": 5000, "--scenario suite --audit 0": 0, "--keys 5": bench.DefaultAudit} {
		if got := configured(t, strings.Fields(args)...); got.AuditDecisions != want || got.Seed != 1 {
			t.Errorf("bench %s audits %d, seed %d; want %d, 1", args, got.AuditDecisions, got.Seed, want)
		}
	}
}
