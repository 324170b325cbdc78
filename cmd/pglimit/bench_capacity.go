package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

const benchCapacityLong = `Find how much each strategy can do here: the highest rate of arrivals at which
the 99th percentile of latency stays under a bound.

First a closed loop shows about how much there is to be had. Then it bisects:
requests arrive on a schedule, and latency counts from when they were due. A
rate is kept if p99 stays under --p99, at most 1 % of the requests fail, and the
answers keep up with the arrivals. It is given up when two probes of --duration
in a row have failed at it.

Exit codes: 0 done, 1 a strategy granted too much or kept the bound at no
rate, 2 failed, 130 ended by Ctrl-C (what was measured so far is printed).`

func newBenchCapacityCommand(a *app) *cobra.Command {
	b := &benchFlags{own: capacityLoad(), onlyOwn: true}
	cmd := &cobra.Command{
		Use:   "capacity",
		Short: "Find the highest rate at which latency stays under a bound",
		Long:  benchCapacityLong,
		Example: lines(
			"# all four of a token bucket, many keys, p99 under 10 ms; about two minutes",
			"pglimit bench capacity --report capacity.html",
			"",
			"# one strategy, a server that is 1 ms further away, p99 under 5 ms",
			"pglimit bench capacity --strategies token_bucket --p99 5ms --latency 1ms",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := b.config()
			if err != nil {
				return usagef(cmd, "%v", err)
			}
			return a.bench(cmd, b, config, nil)
		},
	}
	b.addTo(cmd, func(flags *pflag.FlagSet) {
		flags.DurationVar(&b.p99, "p99", 10*time.Millisecond, "`TIME` that the 99th percentile of latency has to stay under")
	})
	return cmd
}

// capacityLoad is the load of a service with many users. The number of callers is the most that may run at once.
func capacityLoad() scenario.Scenario {
	s := scenario.Custom()
	s.Name, s.Title = "capacity", "capacity"
	s.Limit, s.Keys, s.Callers = pglimit.PerSecond(1_000_000), 10_000, 256
	s.Warmup, s.Phases = 200*time.Millisecond, []scenario.Phase{{Length: 2 * time.Second}}
	return s
}
