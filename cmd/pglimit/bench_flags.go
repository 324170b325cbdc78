package main

import (
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

// benchFlags are the flags of bench. Those of the load change each scenario that is run.
type benchFlags struct {
	strategies []string
	published  bool
	scenarios  []string
	plan       string
	scale      float64
	repeat     int
	audit      int
	seed       uint64
	noSeries   bool
	unlogged   bool
	details    bool
	report     string
	yes        bool
	noDownload bool
	fail       []string

	// own is the user's own load, before flags change it. onlyOwn says that there is no other.
	own     scenario.Scenario
	onlyOwn bool

	load       scenario.Scenario // as flags say, or else as own
	limit      string
	burst      int64
	cost       int64
	rps        float64
	duration   time.Duration
	durability string
	lock       scenario.Percent
}

func newBenchFlags(own scenario.Scenario) *benchFlags {
	b := &benchFlags{own: own, load: own, scale: 1, audit: bench.DefaultAudit, seed: 1}
	b.limit, b.cost, b.duration = b.load.Limit.String(), b.load.Costs[0].Tokens, b.load.Length()
	b.durability = b.load.Durability.String()
	return b
}

// addTo defines the flags of all commands that make a load.
func (b *benchFlags) addTo(cmd *cobra.Command) {
	names := strategyNames()
	flags := cmd.Flags()
	flags.StringSliceVar(&b.strategies, "strategies", bucketNames(), "`NAMES` of the strategies to run")
	flags.BoolVar(&b.published, "published", false, "also run the write-up's three statements as published, for comparison")
	flags.StringVar(&b.report, "report", "", "write an HTML report with pictures to this `FILE`; it needs no network to be read")
	flags.BoolVar(&b.yes, "yes", false, "load a database that is named and not on this machine, without asking")
	flags.BoolVar(&b.noDownload, "no-download", false, "do not fetch a Postgres where neither PostgreSQL nor Docker is installed")
	complete(cmd, "strategies", cobra.FixedCompletions(append(names, publishedNames()...), cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "report", cobra.FixedCompletions([]string{"html"}, cobra.ShellCompDirectiveFilterFileExt))
}

// sources of a throwaway server.
func (b *benchFlags) sources() []pgserver.Source {
	if b.noDownload {
		return []pgserver.Source{pgserver.Local, pgserver.Docker}
	}
	return nil
}

// addSuiteTo defines the flags that choose, repeat and judge loads.
func (b *benchFlags) addSuiteTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&b.scenarios, "scenario", nil, "`NAMES` of the loads to run; help describes them (default: suite, or your own)")
	flags.StringVar(&b.plan, "plan", "", "a YAML `FILE` with loads of your own, in phases; its fields are named like the flags below")
	flags.Float64Var(&b.scale, "scale", b.scale, "`FACTOR` by which all times are longer or shorter")
	flags.IntVar(&b.repeat, "repeat", 0, fmt.Sprintf("`NUMBER` of times that all is run, in turn (default: %d for the suite, else 1)", bench.DefaultRounds))
	flags.BoolVar(&b.details, "details", false, "print all figures")
	flags.StringArrayVar(&b.fail, "fail", nil, "exit with 1 unless every run keeps this `CONDITION`, such as 'p99(grant)<5ms' or 'over=0'; may be repeated")
	complete(cmd, "scenario", cobra.FixedCompletions(scenarioNames(), cobra.ShellCompDirectiveNoFileComp))
	complete(cmd, "plan", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
}

// addLoadTo defines the flags that describe a load.
func (b *benchFlags) addLoadTo(cmd *cobra.Command) {
	l := &b.load
	flags := cmd.Flags()
	flags.StringVar(&b.limit, "limit", b.limit, "`LIMIT` of each key, such as 100/1m or \"100/1m burst 20\"")
	flags.Int64Var(&b.burst, "burst", 0, "`TOKENS` that can be granted at once (default: as --limit says)")
	flags.Int64Var(&b.cost, "cost", b.cost, "`TOKENS` of one request")
	choiceVar(cmd, flags, &b.durability, "durability", "`DURABILITY` of grants", pglimit.Relaxed.String(), pglimit.Durable.String())
	flags.BoolVar(&b.unlogged, "unlogged", false, "measure unlogged tables (see \"pglimit storage --help\"); a database that is named must have them already")

	flags.IntVar(&l.Callers, "callers", l.Callers, "`NUMBER` of concurrent callers, over all instances")
	flags.IntVar(&l.Keys, "keys", l.Keys, "`NUMBER` of keys")
	choiceVar(cmd, flags, &l.Distribution, "distribution", "`DISTRIBUTION` of requests over the keys", scenario.Uniform, scenario.Zipf)
	flags.Float64Var(&l.Exponent, "exponent", l.Exponent, "`EXPONENT` of zipf: the n-th key gets a share in proportion to 1/n^EXPONENT")
	flags.BoolVar(&l.WithRows, "with-rows", false, "take once from each key before the warm-up, so that each has a row")
	flags.IntVar(&l.Instances, "instances", l.Instances, "`NUMBER` of instances, each with its own pool and limiter")
	flags.IntVar(&l.Conns, "conns", l.Conns, "`NUMBER` of connections of each instance")
	flags.DurationVar(&l.Timeout, "timeout", l.Timeout, "`TIME` after which a caller gives up (default: none)")

	s := &l.Stages
	flags.BoolVar(&s.NoCombining, "no-combining", false, "send each request by itself, also while others are under way")
	flags.IntVar(&s.Lanes, "lanes", 0, "`NUMBER` of lanes of each instance, each with one call under way (default: 2)")
	flags.IntVar(&s.MaxWaiting, "max-waiting", 0, "`NUMBER` of callers of each instance that may wait at once (default: 65536)")
	flags.BoolVar(&s.NoMemory, "no-memory", false, "ask Postgres also for requests that are known to be denied")
	flags.DurationVar(&s.DenialTTL, "denial-ttl", 0, "`TIME` for which a denial is remembered at most (default: 1s)")
	flags.IntVar(&s.DenialKeys, "denial-keys", 0, "`NUMBER` of keys of each instance that are remembered at most (default: 65536)")
	flags.BoolVar(&s.Leases, "leases", false, "let instances fetch tokens of busy keys in advance, where the strategy can")
	flags.DurationVar(&s.LeaseTTL, "lease-ttl", 0, "`TIME` for which tokens are set aside at most (default: 1s)")

	flags.BoolVar(&s.NoBreaker, "no-breaker", false, "have every caller wait for a server that does not answer, until --timeout")

	flags.Float64Var(&b.rps, "rps", 0, "`REQUESTS` per second that arrive on schedule (default: a closed loop)")
	choiceVar(cmd, flags, &l.Arrivals, "arrivals", "`SPACING` of requests that arrive on schedule", scenario.Poisson, scenario.Constant)
	flags.DurationVar(&b.duration, "duration", b.duration, "`TIME` for which each strategy is measured")
	flags.DurationVar(&l.Warmup, "warmup", l.Warmup, "`TIME` for which each strategy runs before that")

	flags.DurationVar(&l.Trouble.Latency, "latency", 0, "`TIME` that each round trip takes longer, as if the server were further away")
	flags.Var(&b.lock, "lock", "`SHARE` of the keys, such as 1%, that somebody else holds locked at any time")
	flags.DurationVar(&l.Trouble.RestartAfter, "restart", 0, "restart the throwaway server this `TIME` after the beginning of each run")

	flags.IntVar(&b.audit, "audit", b.audit, fmt.Sprintf("keep at most this `NUMBER` of decisions per run for the audit, 0 none (memory: %d bytes each)", bench.AuditBytes))
	flags.BoolVar(&b.noSeries, "no-series", false, "keep no figures over time")
	flags.Uint64Var(&b.seed, "seed", b.seed, "`SEED` of the keys and arrivals")
}

// changes returns the change that each flag makes to a scenario.
func (b *benchFlags) changes() map[string]func(*scenario.Scenario) {
	l := b.load
	return map[string]func(*scenario.Scenario){
		// The write-up's criterion is for its own limit and user.
		"limit": func(s *scenario.Scenario) { s.Limit, s.AtMost = l.Limit, 0 },
		"burst": func(s *scenario.Scenario) { s.Limit, s.AtMost = s.Limit.WithBurst(b.burst), 0 },
		"cost":  func(s *scenario.Scenario) { s.Costs = []scenario.Cost{{Tokens: b.cost, Share: 1}} },

		"callers":      func(s *scenario.Scenario) { s.Callers = l.Callers },
		"keys":         func(s *scenario.Scenario) { s.Keys, s.AtMost = l.Keys, 0 },
		"distribution": func(s *scenario.Scenario) { s.Distribution = l.Distribution },
		"exponent":     func(s *scenario.Scenario) { s.Exponent = l.Exponent },
		"with-rows":    func(s *scenario.Scenario) { s.WithRows = l.WithRows },
		"instances":    func(s *scenario.Scenario) { s.Instances = l.Instances },
		"conns":        func(s *scenario.Scenario) { s.Conns = l.Conns },
		"timeout":      func(s *scenario.Scenario) { s.Timeout = l.Timeout },

		"no-combining": func(s *scenario.Scenario) { s.Stages.NoCombining = l.Stages.NoCombining },
		"lanes":        func(s *scenario.Scenario) { s.Stages.Lanes = l.Stages.Lanes },
		"max-waiting":  func(s *scenario.Scenario) { s.Stages.MaxWaiting = l.Stages.MaxWaiting },
		"no-memory":    func(s *scenario.Scenario) { s.Stages.NoMemory = l.Stages.NoMemory },
		"denial-ttl":   func(s *scenario.Scenario) { s.Stages.DenialTTL = l.Stages.DenialTTL },
		"denial-keys":  func(s *scenario.Scenario) { s.Stages.DenialKeys = l.Stages.DenialKeys },
		"leases":       func(s *scenario.Scenario) { s.Stages.Leases = l.Stages.Leases },
		"lease-ttl":    func(s *scenario.Scenario) { s.Stages.LeaseTTL = l.Stages.LeaseTTL },

		"no-breaker": func(s *scenario.Scenario) { s.Stages.NoBreaker = l.Stages.NoBreaker },

		"rps": func(s *scenario.Scenario) {
			s.Phases = []scenario.Phase{{From: b.rps, To: b.rps, Length: s.Length()}}
		},
		"arrivals": func(s *scenario.Scenario) { s.Arrivals = l.Arrivals },
		"duration": func(s *scenario.Scenario) { *s = lasting(*s, b.duration) },
		"warmup":   func(s *scenario.Scenario) { s.Warmup = l.Warmup },

		"latency": func(s *scenario.Scenario) { s.Trouble.Latency = l.Trouble.Latency },
		"lock":    func(s *scenario.Scenario) { s.Trouble.LockShare = float64(b.lock) },
		"restart": func(s *scenario.Scenario) { s.Trouble.RestartAfter = l.Trouble.RestartAfter },
	}
}

// inOrder returns the flags that change a scenario, each after those that it builds on.
func (b *benchFlags) inOrder(flags *pflag.FlagSet) (changed []string) {
	changes := b.changes()
	flags.Visit(func(f *pflag.Flag) {
		if changes[f.Name] != nil {
			changed = append(changed, f.Name)
		}
	})
	last := func(name string) int { return slices.Index([]string{"burst", "duration", "restart"}, name) }
	slices.SortStableFunc(changed, func(x, y string) int { return last(x) - last(y) })
	return changed
}

// lasting scales the phases to the total length.
func lasting(s scenario.Scenario, length time.Duration) scenario.Scenario {
	if len(s.Phases) == 1 {
		s.Phases = []scenario.Phase{{From: s.Phases[0].From, To: s.Phases[0].To, Length: length}}
		return s
	}
	warmup := s.Warmup
	s = s.Scaled(float64(length) / float64(s.Length()))
	s.Warmup = warmup
	return s
}

// chosen returns the scenarios before flags change them.
func (b *benchFlags) chosen(changed []string) (all []scenario.Scenario, err error) {
	switch {
	case b.plan != "" && len(b.scenarios) > 0:
		return nil, fmt.Errorf("--scenario and --plan: name one of them")
	case b.plan != "":
		return scenario.ReadFile(b.plan)
	case len(b.scenarios) == 0 && (b.onlyOwn || len(changed) > 0):
		return []scenario.Scenario{b.own}, nil
	case len(b.scenarios) == 0:
		return scenario.ByName(scenario.Suite)
	}
	for _, name := range b.scenarios {
		some, err := scenario.ByName(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		for _, s := range some {
			// A report knows a scenario by its name: what ran twice would be counted twice.
			if !slices.ContainsFunc(all, func(other scenario.Scenario) bool { return other.Name == s.Name }) {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// config returns the Config that the flags describe.
func (b *benchFlags) config(flags *pflag.FlagSet) (config bench.Config, err error) {
	config = bench.Config{
		Rounds: 1, AuditDecisions: b.audit, NoSeries: b.noSeries, Seed: b.seed, Version: moduleVersion(),
	}
	if config.Strategies, config.Published, err = strategiesOf(b.strategies); err != nil {
		return config, err
	}
	if b.published {
		config.Published = publishedNames()
	}
	if b.load.Limit, err = pglimit.ParseLimit(b.limit); err != nil {
		return config, fmt.Errorf("--limit: %w", inFlags(err))
	}
	if flags.Changed("burst") && b.burst < 1 {
		return config, fmt.Errorf("--burst is %d: it must be at least 1", b.burst)
	}
	durability, err := pglimit.ParseDurability(b.durability)
	if err != nil {
		return config, fmt.Errorf("--durability: %w", err)
	}
	if !(b.scale > 0 && b.scale <= 1000) {
		return config, fmt.Errorf("--scale is %v: it must be above 0, and at most 1000", b.scale)
	}
	changed := b.inOrder(flags)
	if config.Scenarios, err = b.chosen(changed); err != nil {
		return config, err
	}
	changes := b.changes()
	for i := range config.Scenarios {
		s := &config.Scenarios[i]
		for _, name := range changed {
			changes[name](s)
		}
		if flags.Changed("durability") {
			s.Durability = durability
		}
		if flags.Changed("repeat") {
			s.Rounds = 0
		}
		*s = s.Scaled(b.scale)
	}
	if len(config.Scenarios) > 1 && b.plan == "" { // many short runs
		config.Rounds = bench.DefaultRounds
		if !flags.Changed("audit") {
			config.AuditDecisions = bench.SuiteAudit
		}
	}
	if flags.Changed("repeat") {
		config.Rounds = b.repeat
	}
	return config, config.Validate()
}

// conditions that --fail demands.
func (b *benchFlags) conditions() (all []gate.Condition, err error) {
	for _, text := range b.fail {
		c, err := gate.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--fail: %w", err)
		}
		all = append(all, c)
	}
	return all, nil
}

// strategiesOf sorts names into ours and those of the write-up.
func strategiesOf(names []string) (ours []pglimit.Strategy, theirs []string, err error) {
	seen := map[string]bool{}
	for _, name := range names {
		name = strings.TrimSpace(name)
		if seen[name] { // two rows of one strategy would be one with twice the runs
			continue
		}
		seen[name] = true
		if slices.Contains(publishedNames(), name) {
			theirs = append(theirs, name)
			continue
		}
		strategy, err := strategies.ByName(name)
		if err != nil {
			return nil, nil, fmt.Errorf("--strategies: there is no %q, only %s, and of the write-up %s",
				name, strings.Join(strategyNames(), ", "), strings.Join(publishedNames(), ", "))
		}
		ours = append(ours, strategy)
	}
	return ours, theirs, nil
}

func publishedNames() []string {
	var names []string
	for _, s := range published.Strategies("") {
		names = append(names, s.Name())
	}
	return names
}

// bucketNames are the strategies that grant like a token bucket, and so can be compared with each other.
func bucketNames() []string {
	var names []string
	for _, s := range strategies.All() {
		if s.Rule() == (strategies.TokenBucket{}).Rule() {
			names = append(names, s.Name())
		}
	}
	return names
}

func strategyNames() []string {
	var names []string
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
	return append(names, "help")
}
