//go:build unix

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/prove"
)

const proveLong = `Prove the promises under faults, on a throwaway PostgreSQL of this machine
(initdb and postgres have to be installed, or are fetched).

Processes ask for few keys in every way there is, while faults are drawn from
the seed: processes and the server are killed and stopped, connections cut,
tables locked. Each round has one fault, and keys of its own. Every decision is
audited. Buckets that do not refill are also judged by a checker that others
wrote, github.com/anishathalye/porcupine. Then faults are planted in the
product itself, and the same audit must catch them.

Two runs with one seed have the same faults, and not the same answers.

Exit codes: 0 the promises held, and what was planted was caught; 1 not; 2
failed.`

func newProveCommands(a *app) []*cobra.Command {
	config, minutes, quick, worker, out := prove.Config{Say: a.say}, 0.0, false, false, ""
	cmd := &cobra.Command{
		Use:   "prove",
		Short: "Prove the promises under faults, and that the audit would see",
		Long:  proveLong,
		Example: lines(
			"pglimit prove --quick",
			"",
			"# the same faults again, and all decisions for \"pglimit audit\"",
			"pglimit prove --seed 42 --out decisions.jsonl",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case worker:
				return prove.Work(cmd.Context(), cmd.InOrStdin(), a.stdout)
			case quick && cmd.Flags().Changed("minutes"):
				return usagef(cmd, "prove takes --quick or --minutes, not both")
			case quick:
				minutes = 1
			case minutes < 0.2 || minutes > 60: // all calls are kept in memory
				return usagef(cmd, "--minutes is %v: it must be from 0.2 to 60", minutes)
			}
			if !cmd.Flags().Changed("seed") {
				config.Seed = uint64(rand.Uint32()) //nolint:gosec // no secret
			}
			config.Length = time.Duration(minutes * float64(time.Minute))
			return a.prove(cmd, config, out)
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&config.Seed, "seed", 0, "draw the faults from this `NUMBER` (default: a random one)")
	flags.Float64Var(&minutes, "minutes", 5, "`LENGTH` of the run")
	flags.BoolVar(&quick, "quick", false, "one minute in all")
	flags.StringVar(&out, "out", "", "write all decisions to this `FILE`, as \"pglimit audit\" reads them")
	flags.BoolVar(&worker, "worker", false, "be a process that asks")
	flags.Lookup("worker").Hidden = true
	return []*cobra.Command{cmd}
}

func (a *app) prove(cmd *cobra.Command, config prove.Config, out string) (err error) {
	config.Worker = []string{os.Args[0], "prove", "--worker"}
	if out != "" {
		file, failed := os.Create(out)
		if failed != nil {
			return fmt.Errorf("--out: %w", failed)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		config.Out = file
	}
	a.say(fmt.Sprintf("seed %d, about %v", config.Seed, config.Length))
	result, err := prove.Run(cmd.Context(), config)
	if err == nil {
		err = a.print(result, proveText(result))
	}
	if err != nil || result.OK() {
		return err
	}
	return exitDenied
}

// proveText is the result on one screen.
func proveText(r prove.Result) string {
	var rows, planted [][]string
	for _, f := range r.Faults {
		row := append([]string{f.Name, f.Does}, numbers(int64(f.Times), f.During, f.After, f.Unknown, f.Over, f.Undue, f.Lost)...)
		rows = append(rows, append(row, shortDuration(time.Duration(f.Slowest)), shortDuration(time.Duration(f.Recovered))))
	}
	for _, p := range r.Plants {
		planted = append(planted, append([]string{p.Name, p.How}, numbers(p.After)...))
	}
	q := r.Porcupine
	text := []string{
		r.Server,
		fmt.Sprintf("seed %d: %d decisions in %s\n", r.Seed, r.Decisions, shortDuration(time.Duration(r.Took))),
		columns([]string{"FAULT", "WHAT", "N", "DURING", "AFTER", "UNKNOWN", "OVER", "UNDUE", "LOST", "SLOWEST", "BACK"}, rows) +
			fmt.Sprintf("permits: %d, at most %d of %d places held at once", r.Permits, r.Most, r.Places),
		fmt.Sprintf("porcupine: %d counters, %d requests, %d without an answer: %d refused, %d undecided\n",
			q.Histories, q.Operations, q.Unknown, q.Refused, q.Undecided),
		columns([]string{"PLANTED", "THE AUDIT SAYS", "AFTER DECISIONS"}, planted),
	}
	for _, finding := range r.Findings[:min(5, len(r.Findings))] {
		text = append(text, oneLine(errors.New(finding)))
	}
	verdict := "the promises held, and what was planted was caught\n"
	if !r.OK() {
		verdict = fmt.Sprintf("NOT PROVED: %d findings; the same faults again: pglimit prove --seed %d\n", len(r.Findings), r.Seed)
	}
	return strings.Join(append(text, verdict), "\n")
}
