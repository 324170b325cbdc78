package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/gate"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// benchFlags are the flags of the commands that make a load.
type benchFlags struct {
	strategies []string
	published  bool
	scenarios  []string
	plan       string
	repeat     int
	audit      int
	seed       uint64
	unlogged   bool
	details    bool
	report     string
	yes        bool
	noDownload bool
	failIf     []string

	p99 time.Duration

	own     scenario.Scenario // the user's own load, before fields change it
	onlyOwn bool              // there is no other
	fields  []field           // that change each load, in the order of the command line
}

// field of a load, as a plan names it.
type field struct{ name, value string }

// loadFlag is a flag that sets a field of each load. Without a name it is --set.
type loadFlag struct {
	b         *benchFlags
	name      string
	ownsValue string // the field's value in the user's own load
}

func (f loadFlag) String() string { return f.ownsValue }

func (f loadFlag) Type() string {
	if f.ownsValue == "false" {
		return "bool"
	}
	return "value"
}

func (f loadFlag) Set(text string) error {
	set := field{f.name, text}
	if f.name == "" {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return errors.New("it must be a field of a plan and its value, such as conns=32")
		}
		set = field{name, value}
	}
	probe := scenario.Custom()
	if err := probe.Set(set.name, set.value); err != nil {
		return errors.Unwrap(err)
	}
	f.b.fields = append(f.b.fields, set)
	return nil
}

// addTo defines the flags, in the groups in which the help lists them.
func (b *benchFlags) addTo(cmd *cobra.Command, more func(*pflag.FlagSet)) {
	load := func(flags *pflag.FlagSet, name, value, usage string) *pflag.Flag {
		return flags.VarPF(loadFlag{b, name, value}, cmp.Or(name, "set"), "", usage)
	}
	groupFlags(cmd,
		flagGroup{"What to run", func(flags *pflag.FlagSet) {
			flags.StringSliceVar(&b.strategies, "strategies", nil, "`NAMES` of strategies, or all (default: the four token buckets)")
			flags.BoolVar(&b.published, "published", false, "also run the write-up's three statements as published")
			if !b.onlyOwn {
				flags.StringSliceVar(&b.scenarios, "scenario", nil, "`NAMES` of loads: "+strings.Join(scenarioNames(), ", ")+" (default: the suite, or a load of your own)")
				flags.StringVar(&b.plan, "plan", "", "a YAML `FILE` with loads of your own, in phases: see docs/plan.yaml")
				flags.IntVar(&b.repeat, "repeat", 0, fmt.Sprintf("`NUMBER` of rounds in which all is run (default: %d for the suite, else 1)", bench.DefaultRounds))
			}
		}},
		flagGroup{"The load (a flag makes a load of your own, or changes the named ones)", func(flags *pflag.FlagSet) {
			load(flags, "limit", b.own.Limit.String(), "`LIMIT` of each key, such as 100/1m or \"100/1m burst 20\"")
			load(flags, "burst", "", "`TOKENS` at once").Hidden = true // the limit says it
			load(flags, "keys", fmt.Sprint(b.own.Keys), "`NUMBER` of keys")
			load(flags, "callers", fmt.Sprint(b.own.Callers), "`NUMBER` of concurrent callers, over all instances")
			load(flags, "instances", fmt.Sprint(b.own.Instances), "`NUMBER` of instances, each with its own pool and limiter")
			if !b.onlyOwn {
				load(flags, "rps", "", "`REQUESTS` per second that arrive on schedule (default: a closed loop)")
			}
			load(flags, "duration", b.own.Length().String(), "`TIME` of each run, all phases together")
			load(flags, "durability", b.own.Durability.String(), "`DURABILITY` of grants: relaxed, durable")
			load(flags, "no-combining", "false", "send each request by itself, also while others are under way").NoOptDefVal = "true"
			load(flags, "no-memory", "false", "ask Postgres also for requests that are known to be denied").NoOptDefVal = "true"
			load(flags, "latency", "", "`TIME` that each round trip takes longer, as if the server were further away")
			load(flags, "", "", "`FIELD=VALUE`: any field of a plan, such as leases=true; may be repeated")
			flags.Uint64Var(&b.seed, "seed", 1, "`SEED` of the keys and arrivals")
		}},
		flagGroup{"The server", func(flags *pflag.FlagSet) {
			flags.BoolVar(&b.unlogged, "unlogged", false, "measure unlogged tables, on a throwaway server")
			flags.BoolVar(&b.yes, "yes", false, "load a database that is named, also if it is not on this machine")
			flags.BoolVar(&b.noDownload, "no-download", false, "do not fetch a Postgres where neither PostgreSQL nor Docker is installed")
		}},
		flagGroup{"The outcome", func(flags *pflag.FlagSet) {
			more(flags)
			flags.StringVar(&b.report, "report", "", "write a page with pictures to this HTML `FILE`")
			flags.IntVar(&b.audit, "audit", bench.DefaultAudit, fmt.Sprintf("most `DECISIONS` of a run to audit, 0 none (memory: %d bytes each)", bench.AuditBytes))
		}},
	)
	complete(cmd, "strategies", cobra.FixedCompletions(append(strategyNames(), append(publishedNames(), allStrategies)...), cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "report", cobra.FixedCompletions([]string{"html"}, cobra.ShellCompDirectiveFilterFileExt))
	if !b.onlyOwn {
		complete(cmd, "scenario", cobra.FixedCompletions(scenarioNames(), cobra.ShellCompDirectiveNoFileComp))
		complete(cmd, "plan", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	}
}

// sources of a throwaway server.
func (b *benchFlags) sources() []pgserver.Source {
	if b.noDownload {
		return []pgserver.Source{pgserver.Local, pgserver.Docker}
	}
	return nil
}

// chosen returns the loads before fields change them. Durability alone makes no load of one's own.
func (b *benchFlags) chosen() (all []scenario.Scenario, err error) {
	shaped := slices.ContainsFunc(b.fields, func(f field) bool { return f.name != "durability" })
	switch {
	case b.plan != "" && len(b.scenarios) > 0:
		return nil, errors.New("--scenario and --plan: name one of them")
	case b.plan != "":
		if all, err = scenario.ReadFile(b.plan); err != nil {
			return nil, fmt.Errorf("--plan: %w", err)
		}
		return all, nil
	case len(b.scenarios) == 0 && (b.onlyOwn || shaped):
		return []scenario.Scenario{b.own}, nil
	case len(b.scenarios) == 0:
		return scenario.ByName(scenario.Suite)
	}
	for _, name := range b.scenarios {
		some, err := scenario.ByName(strings.TrimSpace(name))
		if err != nil {
			return nil, fmt.Errorf("--scenario: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// config returns the Config that the flags describe.
func (b *benchFlags) config() (config bench.Config, err error) {
	config = bench.Config{Rounds: 1, AuditDecisions: b.audit, Seed: b.seed, Capacity: b.onlyOwn, P99: b.p99, Version: moduleVersion(), SkipMissing: len(b.strategies) == 0}
	if config.Strategies, err = b.strategiesNamed(); err != nil {
		return config, err
	}
	if config.Scenarios, err = b.chosen(); err != nil {
		return config, err
	}
	isBurst := func(f field) bool { return f.name == "burst" } // of whatever limit is set
	fields := slices.DeleteFunc(slices.Clone(b.fields), isBurst)
	if i := slices.IndexFunc(b.fields, isBurst); i >= 0 {
		fields = append(fields, b.fields[i])
	}
	for i := range config.Scenarios {
		s := &config.Scenarios[i]
		for _, f := range fields {
			if err := s.Set(f.name, f.value); err != nil {
				return config, fmt.Errorf("--%w", err)
			}
		}
		s.Once = s.Once && b.repeat == 0
	}
	if len(config.Scenarios) > 1 && b.plan == "" { // many short runs
		config.Rounds = bench.DefaultRounds
	}
	if b.repeat != 0 {
		config.Rounds = b.repeat
	}
	return config, config.Validate()
}

// conditions that --fail-if demands.
func (b *benchFlags) conditions() (all []gate.Condition, err error) {
	for _, text := range b.failIf {
		c, err := gate.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--fail-if: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// allStrategies stands for all of ours.
const allStrategies = "all"

// strategiesNamed are ours, and the statements of the write-up.
func (b *benchFlags) strategiesNamed() (all []pglimit.Strategy, err error) {
	names := b.strategies
	if len(names) == 0 {
		names = bucketNames()
	}
	if i := slices.Index(names, allStrategies); i >= 0 {
		names = slices.Concat(strategyNames(), names[:i], names[i+1:])
	}
	if b.published {
		names = slices.Concat(names, publishedNames())
	}
	there := published.Strategies("")
	for _, s := range strategies.All() {
		there = append(there, s)
	}
	for _, name := range names {
		named := func(s pglimit.Strategy) bool { return s.Name() == strings.TrimSpace(name) }
		i := slices.IndexFunc(there, named)
		if i < 0 {
			return nil, fmt.Errorf("--strategies: there is no %q, only %s, and of the write-up %s",
				name, strings.Join(strategyNames(), ", "), strings.Join(publishedNames(), ", "))
		}
		if !slices.ContainsFunc(all, named) { // two rows of one strategy would be one with twice the runs
			all = append(all, there[i])
		}
	}
	return all, nil
}

func publishedNames() (names []string) {
	for _, s := range published.Strategies("") {
		names = append(names, s.Name())
	}
	return names
}

// bucketNames are the strategies that grant like a token bucket, and so can be compared with each other.
func bucketNames() (names []string) {
	for _, s := range strategies.All() {
		if s.Rule() == (strategies.TokenBucket{}).Rule() {
			names = append(names, s.Name())
		}
	}
	return names
}

func strategyNames() (names []string) {
	for _, s := range strategies.All() {
		names = append(names, s.Name())
	}
	return names
}

func scenarioNames() []string {
	names := []string{scenario.Suite}
	for _, s := range scenario.BuiltIn() {
		names = append(names, s.Name)
	}
	return names
}
