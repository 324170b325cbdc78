package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/gate"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/report"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/text"
)

func newBenchCommand(a *app) *cobra.Command {
	b := &benchFlags{own: scenario.Custom()}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compare the strategies under load, for speed and exactness",

		Annotations: map[string]string{"runs": "by itself"}, // see usageTemplate
		Long:        benchLong,
		Example: lines(
			"# which strategy? and the same with pictures",
			"pglimit bench",
			"pglimit bench --report bench.html",
			"",
			"# the write-up's experiment in a tenth of its time, its own statements too",
			"pglimit bench --scenario write-up --duration 1m --published",
			"",
			"# what users see at 5,000 requests per second, with a server 2 ms away",
			"pglimit bench --rps 5000 --keys 1000 --latency 2ms",
			"",
			"# in a pipeline: exit with 1 if grants are slow, or one is too many",
			"pglimit bench --scenario many-keys-granted --fail-if 'p99(grant)>20ms'",
		),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 { // it has commands of its own, whose names may be mistyped
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := b.config()
			if err != nil {
				return usagef(cmd, "%v", err)
			}
			conditions, err := b.conditions()
			if err != nil {
				return usagef(cmd, "%v", err)
			}
			return a.bench(cmd, b, config, conditions)
		},
	}
	b.addTo(cmd, func(flags *pflag.FlagSet) {
		flags.BoolVar(&b.details, "details", false, "print all figures")
		flags.StringArrayVar(&b.failIf, "fail-if", nil, "exit with 1 if any run meets this `CONDITION`, such as 'p99(grant)>5ms'; may be repeated")
	})
	cmd.AddCommand(newBenchCapacityCommand(a), newBenchCompareCommand(a))
	return cmd
}

// bench runs what the flags say, prints it, and judges it.
func (a *app) bench(cmd *cobra.Command, b *benchFlags, config bench.Config, conditions []gate.Condition) error {
	measured, err := a.measure(cmd, b, config)
	if err != nil && len(measured.Runs)+len(measured.Capacity) == 0 {
		return err
	}
	if printed := a.printBench(measured, b); printed != nil {
		return errors.Join(printed, err)
	}
	if err == nil && measured.Interrupted {
		err = cmd.Context().Err()
	}
	if err != nil {
		return err
	}
	bad := complaints(measured, conditions)
	for _, what := range bad {
		a.say(what)
	}
	if len(bad) > 0 {
		return exitDenied
	}
	return nil
}

// measure runs the bench on the database that the user named, or on a throwaway server.
func (a *app) measure(cmd *cobra.Command, b *benchFlags, config bench.Config) (measured result.Report, err error) {
	if b.report != "" {
		unused, err := reserve(b.report)
		if err != nil {
			return measured, fmt.Errorf("--report: %w", err)
		}
		defer unused()
	}
	ctx := cmd.Context()
	connections := 0
	for _, s := range config.Scenarios {
		connections = max(connections, s.Instances*s.Conns)
	}
	place, err := a.findBenchPlace(ctx, connections, b)
	defer a.leave(place, &err)
	if err != nil {
		return measured, err
	}
	config.Command = a.commandLine()
	measured, err = bench.Run(ctx, place.Place, config, newBenchProgress(a.stderr))
	if b.report != "" && len(measured.Runs)+len(measured.Capacity) > 0 {
		err = errors.Join(err, a.writeReport(b.report, measured))
	}
	return measured, err
}

// reserve checks that the file can be written, before ten minutes of measuring. The old content stays until there is a
// new report; unused removes an empty file.
func reserve(name string) (unused func(), err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a page for others to read
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	return func() {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
			os.Remove(name) //nolint:errcheck // it does no harm
		}
	}, nil
}

func (a *app) writeReport(name string, measured result.Report) error {
	var page strings.Builder
	if err := report.Write(&page, measured); err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	if err := os.WriteFile(name, []byte(page.String()), 0o644); err != nil { //nolint:gosec // a page for others to read
		return fmt.Errorf("--report: %w", err)
	}
	a.say("wrote " + name)
	return nil
}

// printBench prints the answer, and with --details all figures below it.
func (a *app) printBench(r result.Report, b *benchFlags) error {
	if a.output == outputJSON {
		return r.Write(a.stdout)
	}
	printed := text.Screen(r, leftOut(r, b))
	if b.details {
		printed += "\n" + text.Details(r)
	}
	_, err := fmt.Fprint(a.stdout, printed)
	return err
}

// leftOut names the strategies that were not run, and says how to have them and the rest.
func leftOut(r result.Report, b *benchFlags) (line string) {
	left := slices.DeleteFunc(strategyNames(), func(name string) bool {
		return slices.Contains(r.Strategies(), name)
	})
	if len(left) > 0 {
		line = "Not run: " + strings.Join(left, ", ") + " (--strategies all). "
	}
	if !b.details && len(r.Runs) > 0 {
		line += "--details prints all figures, --report FILE.html draws them."
	}
	return line
}

// mostFailed is the share of failed requests above which a run shows nothing.
const mostFailed = 0.5

// complaints are what a pipeline must not overlook.
func complaints(r result.Report, conditions []gate.Condition) (all []string) {
	tooMany := func(strategy, where string, tokens int64) {
		if tokens > 0 {
			all = append(all, fmt.Sprintf("%s, %s: granted %d tokens too many", strategy, where, tokens))
		}
	}
	for _, run := range r.Runs {
		if run.Over() {
			tooMany(run.Strategy, run.Scenario, run.Audit.OverTokens)
		}
		if share := run.FailedShare(); share > mostFailed {
			all = append(all, fmt.Sprintf("%s, %s: %.0f %% of the requests failed", run.Strategy, run.Scenario, 100*share))
		}
	}
	for _, found := range r.Capacity {
		if found.Rate == 0 {
			all = append(all, fmt.Sprintf("%s kept p99 under %v at no rate", found.Strategy, time.Duration(1000*found.P99Bound)))
		}
		tooMany(found.Strategy, "capacity", found.OverTokens())
	}
	for _, c := range conditions {
		all = append(all, c.Check(r)...)
	}
	return all
}

// say tells a person on stderr what is going on.
func (a *app) say(what string) {
	fmt.Fprintln(a.stderr, "pglimit: "+what) //nolint:errcheck // stderr is gone
}
