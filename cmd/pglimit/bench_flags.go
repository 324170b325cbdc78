package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// benchFlags are the flags of bench, most of them fields of its configuration.
type benchFlags struct {
	bench.Config
	strategies []string
	limit      string
	burst      int64
	durability string
	unlogged   bool
}

func newBenchFlags() *benchFlags {
	b := &benchFlags{Config: bench.DefaultConfig()}
	b.limit = b.Limit.String()
	b.durability = b.Durability.String()
	return b
}

func (b *benchFlags) addTo(cmd *cobra.Command) {
	names := strategyNames()
	flags := cmd.Flags()
	flags.SortFlags = false

	flags.StringSliceVar(&b.strategies, "strategies", names, "`NAMES` of the strategies to run")
	flags.BoolVar(&b.Published, "published", false, "also run the write-up's statements as published, for comparison")

	flags.StringVar(&b.limit, "limit", b.limit, "`LIMIT` of each key, such as 100/1m or \"100/1m burst 20\"")
	flags.Int64Var(&b.burst, "burst", 0, "`TOKENS` that can be granted at once (default: as --limit says)")
	flags.Int64Var(&b.Cost, "cost", b.Cost, "`TOKENS` of one request")
	choiceVar(cmd, flags, &b.durability, "durability", "`DURABILITY` of grants", pglimit.Relaxed.String(), pglimit.Durable.String())

	flags.BoolVar(&b.unlogged, "unlogged", false, "measure unlogged tables (see \"pglimit storage --help\"); a database that is named must have them already")

	flags.IntVar(&b.Callers, "callers", b.Callers, "`NUMBER` of concurrent callers, over all instances")
	flags.IntVar(&b.Keys, "keys", b.Keys, "`NUMBER` of keys")
	choiceVar(cmd, flags, &b.Distribution, "distribution", "`DISTRIBUTION` of requests over the keys", bench.Uniform, bench.Zipf)
	flags.IntVar(&b.Instances, "instances", b.Instances, "`NUMBER` of instances, each with its own pool and limiter")
	flags.IntVar(&b.Conns, "conns", b.Conns, "`NUMBER` of connections of each instance")
	flags.DurationVar(&b.Timeout, "timeout", b.Timeout, "`TIME` after which a caller gives up (default: none)")

	flags.BoolVar(&b.NoCombining, "no-combining", false, "send each request by itself, also while others are under way")
	flags.IntVar(&b.Lanes, "lanes", 0, "`NUMBER` of lanes of each instance, each with one call under way (default: 2)")
	flags.IntVar(&b.MaxWaiting, "max-waiting", 0, "`NUMBER` of callers of each instance that may wait at once (default: 65536)")
	flags.BoolVar(&b.NoMemory, "no-memory", false, "ask Postgres also for requests that are known to be denied")
	flags.DurationVar(&b.DenialTTL, "denial-ttl", 0, "`TIME` for which a denial is remembered at most (default: 1s)")
	flags.IntVar(&b.DenialKeys, "denial-keys", 0, "`NUMBER` of keys of each instance that are remembered at most (default: 65536)")
	flags.BoolVar(&b.Leases, "leases", false, "let instances fetch tokens of busy keys in advance, where the strategy can")
	flags.DurationVar(&b.LeaseTTL, "lease-ttl", 0, "`TIME` for which tokens are set aside at most (default: 1s)")

	flags.Float64Var(&b.RPS, "rps", b.RPS, "`REQUESTS` per second that arrive on schedule (default: a closed loop)")
	choiceVar(cmd, flags, &b.Arrivals, "arrivals", "`SPACING` of arrivals under --rps", bench.Poisson, bench.Constant)

	flags.DurationVar(&b.Duration, "duration", b.Duration, "`TIME` for which each strategy is measured")
	flags.DurationVar(&b.Warmup, "warmup", b.Warmup, "`TIME` for which each strategy runs before that")
	flags.IntVar(&b.AuditDecisions, "audit", b.AuditDecisions, fmt.Sprintf("keep at most this `NUMBER` of decisions per strategy for the audit, 0 none (memory: %d bytes each)", bench.AuditBytes))
	flags.Uint64Var(&b.Seed, "seed", b.Seed, "`SEED` of the keys and arrivals")

	complete(cmd, "strategies", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	noFiles(cmd, "limit", "burst", "cost", "callers", "keys", "instances", "conns", "timeout",
		"lanes", "max-waiting", "denial-ttl", "denial-keys", "lease-ttl", "rps", "duration", "warmup", "audit", "seed")
}

func (b *benchFlags) config(cmd *cobra.Command) (bench.Config, error) {
	config := b.Config
	for _, name := range b.strategies {
		strategy, err := strategies.ByName(strings.TrimSpace(name))
		if err != nil {
			return config, fmt.Errorf("--strategies: there is no %q, only %s", name, strings.Join(strategyNames(), ", "))
		}
		config.Strategies = append(config.Strategies, strategy)
	}
	var err error
	if config.Limit, err = pglimit.ParseLimit(b.limit); err != nil {
		return config, fmt.Errorf("--limit: %w", err)
	}
	if cmd.Flags().Changed("burst") {
		if b.burst < 1 {
			return config, fmt.Errorf("--burst is %d: it must be at least 1", b.burst)
		}
		config.Limit = config.Limit.WithBurst(b.burst)
	}
	if config.Durability, err = pglimit.ParseDurability(b.durability); err != nil {
		return config, fmt.Errorf("--durability: %w", err)
	}
	return config, config.Validate()
}

func strategyNames() []string {
	var names []string
	for _, s := range strategies.All() {
		names = append(names, s.Name())
	}
	return names
}
