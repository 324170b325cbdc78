//go:build unix

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
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
	config, minutes, quick, out := prove.Config{Say: a.say}, 0.0, false, ""
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
			case quick && cmd.Flags().Changed("minutes"):
				return usagef(cmd, "prove takes --quick or --minutes, not both")
			case quick:
				minutes = 1
			case minutes < 0.2 || minutes > 120: // all calls are kept in memory
				return usagef(cmd, "--minutes is %v: it must be from 0.2 to 120", minutes)
			}
			if config.Processes < 1 || config.Processes > 16 || config.Callers < 1 || config.Callers > 1000 {
				return usagef(cmd, "--processes is %d and --callers %d: 1 to 16, and 1 to 1000", config.Processes, config.Callers)
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
	flags.IntVar(&config.Processes, "processes", 3, "`NUMBER` of processes that ask")
	flags.IntVar(&config.Callers, "callers", 8, "`NUMBER` of callers in each")
	return []*cobra.Command{cmd, {
		Use: "prove-worker", Short: "A process of prove", Long: "A process of prove, which starts it.", Example: lines("pglimit prove"),
		Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return prove.Work(cmd.Context(), cmd.InOrStdin(), a.stdout)
		},
	}}
}

func (a *app) prove(cmd *cobra.Command, config prove.Config, out string) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config.Worker, config.Pictures = []string{self, "prove-worker"}, strings.TrimSuffix(cmp.Or(out, filepath.Join(os.TempDir(), fmt.Sprintf("pglimit-prove-%d", config.Seed))), ".jsonl")
	if out != "" {
		file, failed := os.Create(out)
		if failed != nil {
			return fmt.Errorf("--out: %w", failed)
		}
		buffer := bufio.NewWriterSize(file, 1<<16)
		defer func() { err = errors.Join(err, buffer.Flush(), file.Close()) }()
		config.Out = buffer
	}
	a.say(fmt.Sprintf("seed %d, about %v", config.Seed, config.Length))
	result, err := prove.Run(cmd.Context(), config)
	if err == nil {
		err = a.print(result, proveText(result))
	}
	if err == nil && !result.OK() {
		err = exitDenied
	}
	return err
}

// proveText is the result on one screen.
func proveText(r prove.Result) string {
	var rows, planted [][]string
	var notes, late []string
	for _, f := range r.Faults {
		switch {
		case f.Skipped != "":
			notes = append(notes, "skipped: "+f.Name+": "+f.Skipped)
		case f.Times == 0:
			late = append(late, f.Name)
		default:
			row := []string{f.Name, f.Does}
			for _, n := range []int64{int64(f.Times), f.During, f.After, f.Unknown, f.Over, f.Undue, f.Lost} {
				row = append(row, strconv.FormatInt(n, 10))
			}
			rows = append(rows, append(row, shortDuration(time.Duration(f.Slowest)), shortDuration(time.Duration(f.Recovered))))
		}
	}
	for ; len(late) > 0; late = late[min(5, len(late)):] {
		notes = append(notes, "there was no time: "+strings.Join(late[:min(5, len(late))], ", "))
	}
	for _, p := range r.Plants {
		verdict := "not caught"
		if p.Skipped != "" {
			verdict = "skipped: " + p.Skipped
		} else if p.Caught {
			verdict = "caught: " + p.How
		}
		planted = append(planted, []string{p.Name, verdict, strconv.FormatInt(p.After, 10)})
	}
	q := r.Porcupine
	notes = append(notes, fmt.Sprintf("permits: %d, at most %d of %d places held at once", r.Permits, r.Most, r.Places),
		fmt.Sprintf("porcupine: %d counters, %d requests, %d without an answer: %d refused, %d undecided",
			q.Histories, q.Operations, q.Unknown, q.Refused, q.Undecided))
	var text strings.Builder
	fmt.Fprintf(&text, "%s\nseed %d: %d decisions of %d processes with %d callers each, in %s\n\n%s%s\n\n%s\n", r.Server, r.Seed, r.Decisions,
		r.Processes, r.Callers, shortDuration(time.Duration(r.Took)),
		columns([]string{"FAULT", "WHAT", "N", "DURING", "AFTER", "UNKNOWN", "OVER", "UNDUE", "LOST", "SLOWEST", "BACK"}, rows),
		strings.Join(notes, "\n"), columns([]string{"PLANTED", "THE AUDIT SAYS", "AFTER DECISIONS"}, planted))
	for _, finding := range r.Findings[:min(5, len(r.Findings))] {
		text.WriteString(oneLine(errors.New(finding)) + "\n")
	}
	if r.OK() {
		return text.String() + "the promises held, and what was planted was caught\n"
	}
	return text.String() + fmt.Sprintf("NOT PROVED: %d findings; the same faults again: pglimit prove --seed %d --processes %d --callers %d\n",
		len(r.Findings), r.Seed, r.Processes, r.Callers)
}
