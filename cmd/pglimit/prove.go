//go:build unix

package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/prove"
)

const proveLong = `Prove the promises under faults, on a throwaway PostgreSQL of this machine.

Processes ask for few keys in every way there is (takes, groups, IDs, refunds,
waits, leases, permits, limits that change, calendar windows), while faults are
drawn from the seed: processes and servers are killed and stopped, connections
cut, tables locked, and so on. Every decision is audited. In each round there is
one fault, and keys of its own.

Then faults are planted in the product itself, and the same audit must catch
them. The histories of buckets that do not refill are also judged by a checker
that others wrote, github.com/anishathalye/porcupine.

It needs initdb and postgres (as the package postgresql has them), or fetches
them; as root, it runs them as the user postgres. Two runs with one seed have
the same faults in the same order, and not the same answers.

Exit codes: 0 the promises held and what was planted was caught; 1 not; 2 failed.`

type proveFlags struct {
	seed               uint64
	minutes            float64
	quick              bool
	out                string
	processes, callers int
}

func newProveCommands(a *app) []*cobra.Command {
	var f proveFlags
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
		RunE: func(cmd *cobra.Command, _ []string) error { return a.prove(cmd, f) },
	}
	flags := cmd.Flags()
	flags.Uint64Var(&f.seed, "seed", 0, "draw the faults from this `NUMBER` (default: a random one)")
	flags.Float64Var(&f.minutes, "minutes", 5, "`LENGTH` of the run")
	flags.BoolVar(&f.quick, "quick", false, "one minute in all")
	flags.StringVar(&f.out, "out", "", "write all decisions to this `FILE`, as \"pglimit audit\" reads them")
	flags.IntVar(&f.processes, "processes", 3, "`NUMBER` of processes that ask")
	flags.IntVar(&f.callers, "callers", 8, "`NUMBER` of callers in each")
	worker := &cobra.Command{
		Use: "prove-worker", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return prove.Work(cmd.Context(), cmd.InOrStdin(), a.stdout)
		},
	}
	return []*cobra.Command{cmd, worker}
}

func (a *app) prove(cmd *cobra.Command, f proveFlags) (err error) {
	if f.quick {
		f.minutes = 1
	}
	switch {
	case f.quick && cmd.Flags().Changed("minutes"):
		return usagef(cmd, "prove takes --quick or --minutes, not both")
	case f.minutes < 0.2 || f.minutes > 24*60:
		return usagef(cmd, "--minutes is %v: it must be from 0.2 to 1440", f.minutes)
	case f.processes < 1 || f.processes > 16 || f.callers < 1 || f.callers > 1000:
		return usagef(cmd, "--processes is %d and --callers %d: 1 to 16, and 1 to 1000", f.processes, f.callers)
	}
	if !cmd.Flags().Changed("seed") {
		f.seed = uint64(rand.Uint32()) //nolint:gosec // no secret
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config := prove.Config{
		Seed: f.seed, Length: time.Duration(f.minutes * float64(time.Minute)), Processes: f.processes, Callers: f.callers,
		Pictures: strings.TrimSuffix(cmp.Or(f.out, "prove.jsonl"), ".jsonl"), Worker: []string{self, "prove-worker"}, Say: a.say,
	}
	if f.out != "" {
		file, err := os.Create(f.out)
		if err != nil {
			return fmt.Errorf("--out: %w", err)
		}
		buffer := bufio.NewWriterSize(file, 1<<16)
		defer func() { err = errors.Join(err, buffer.Flush(), file.Close()) }()
		config.Out = buffer
	}
	a.say(fmt.Sprintf("seed %d, about %v", f.seed, config.Length))
	result, err := prove.Run(cmd.Context(), config)
	if err != nil {
		return err
	}
	if err := a.print(result, proveText(result)); err != nil {
		return err
	}
	if !result.OK() {
		return exitDenied
	}
	return nil
}

// proveText is the result on one screen.
func proveText(r prove.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nseed %d: %d decisions of %d processes with %d callers each, in %s\n\n", r.Server, r.Seed, r.Decisions, r.Processes,
		r.Callers, shortDuration(time.Duration(r.Took)))
	var rows [][]string
	var skipped, late []string
	for _, f := range r.Faults {
		switch {
		case f.Skipped != "":
			skipped = append(skipped, "skipped: "+f.Name+": "+f.Skipped)
			continue
		case f.Times == 0:
			late = append(late, f.Name)
			continue
		}
		row := []string{f.Name, f.Does, strconv.Itoa(f.Times)}
		for _, n := range []int64{f.During, f.After, f.Unknown, f.Over, f.Undue, f.Lost} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, append(row, shortDuration(time.Duration(f.Slowest)), shortDuration(time.Duration(f.Recovered))))
	}
	b.WriteString(columns([]string{"FAULT", "WHAT", "TIMES", "DURING", "AFTER", "UNKNOWN", "OVER", "UNDUE", "LOST", "SLOWEST", "BACK IN"}, rows))
	for len(late) > 0 {
		n := min(5, len(late))
		skipped = append(skipped, "skipped, there was no time: "+strings.Join(late[:n], ", "))
		late = late[n:]
	}
	for _, line := range skipped {
		b.WriteString(line + "\n")
	}
	fmt.Fprintf(&b, "permits: %d, at most %d of %d places held at once\n", r.Permits, r.Most, r.Places)
	q := r.Porcupine
	fmt.Fprintf(&b, "porcupine: %d histories of a counter, %d requests, %d without an answer: %d refused, %d undecided\n\n",
		q.Histories, q.Operations, q.Unknown, q.Refused, q.Undecided)
	rows = nil
	for _, p := range r.Plants {
		verdict := "not caught"
		switch {
		case p.Skipped != "":
			verdict = "skipped: " + p.Skipped
		case p.Caught:
			verdict = fmt.Sprintf("caught: %s", p.How)
		}
		rows = append(rows, []string{p.Name, verdict, strconv.FormatInt(p.After, 10)})
	}
	b.WriteString(columns([]string{"PLANTED", "THE AUDIT SAYS", "AFTER DECISIONS"}, rows))
	for i, finding := range r.Findings {
		if i == 5 {
			fmt.Fprintf(&b, "and %d more\n", len(r.Findings)-i)
			break
		}
		b.WriteString("\n" + oneLine(errors.New(finding)) + "\n")
	}
	verdict := "the promises held, and what was planted was caught"
	if !r.OK() {
		verdict = fmt.Sprintf("NOT PROVED; the same faults again: pglimit prove --seed %d --processes %d --callers %d", r.Seed, r.Processes, r.Callers)
	}
	b.WriteString("\n" + verdict + "\n")
	return b.String()
}
