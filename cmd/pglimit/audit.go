package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/strategies/audit"
)

const auditLong = `Judge the decisions of a limiter, of this one or of any other: was more granted
than the limit allows (over), and was a request denied although the tokens were
there (undue)? FILE has a decision on each line, as JSON; - is standard input:

  {"key":"user:42","at":"2026-05-04T12:00:00.25Z","tokens":3,"granted":3,
   "limit":"100/1m burst 20"}

  key, limit  the bucket, and its limit as --limit takes it
  at          when it was decided, by one clock: RFC 3339, or nanoseconds
  granted     how many tokens; 0 is a denial
  tokens      how many were wanted (1), all or none, or in multiples of "unit"
  limiter     names the limiter, if there are several
  unknown     true: no answer came, and the tokens may have been taken, at that
              time or later. It excuses denials, and never a grant
  id          the request was sent again under this name, and is charged once
  delay_ns    what was reserved may be used so much later
  returned    so many of the granted tokens were given back
  contended   true: excuses a denial, because another request held the row
  rule        "window": never more than a burst in any window. Otherwise never
              more than burst + tokens x T / period in any span of time T

The order of the lines does not matter, and other fields are ignored. A bucket
is full before its first line. In Go, audit.NewWriter writes such lines.

Exit codes: 0 nothing over, nothing undue; 1 something is; 2 failed.`

func newAuditCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "audit FILE.jsonl",
		Short:             "Judge the decisions of any limiter: over, undue",
		Long:              auditLong,
		Example:           lines("pglimit audit decisions.jsonl", "", "zcat decisions.jsonl.gz | pglimit audit -"),
		Args:              takes("FILE.jsonl"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"jsonl"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" {
				return a.audit(args[0], cmd.InOrStdin())
			}
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close() //nolint:errcheck // it was only read
			return a.audit(args[0], file)
		},
	}
}

// auditJSON is what --output json prints of a limiter.
type auditJSON struct {
	Limiter   string   `json:"limiter"`
	Keys      int      `json:"keys"`
	Decisions int64    `json:"decisions"`
	Granted   int64    `json:"granted_tokens"`
	Denials   int64    `json:"denials"`
	Unknown   int64    `json:"unknown"`
	Over      int64    `json:"over_tokens"` // of the worst key, in the worst span
	Twice     int64    `json:"twice_tokens"`
	Undue     int64    `json:"undue_denials"`
	Worst     []string `json:"worst,omitempty"`
}

func (a *app) audit(name string, from io.Reader) error {
	log, err := audit.ReadLog(from)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var answer []auditJSON
	var rows [][]string
	var worst []string
	for _, j := range log.Check() {
		if j.Err != nil {
			return fmt.Errorf("limiter %q: %w", j.Limiter, j.Err)
		}
		of := auditJSON{j.Limiter, j.Keys, j.Grants + j.Denials, j.Granted, j.Denials, j.Unknown, j.Over.Tokens, j.Twice, j.NotDueTotal, j.Worst()}
		name := cmp.Or(j.Limiter, "-")
		for _, line := range of.Worst {
			worst = append(worst, name+": "+line+"\n")
		}
		counts := numbers(int64(of.Keys), of.Decisions, of.Granted, of.Denials, of.Unknown, of.Over, of.Twice, of.Undue)
		answer, rows = append(answer, of), append(rows, append([]string{name}, counts...))
	}
	if len(answer) == 0 {
		return fmt.Errorf("%s has no decisions", name)
	}
	head := []string{"LIMITER", "KEYS", "DECISIONS", "TOKENS", "DENIED", "UNKNOWN", "OVER", "TWICE", "UNDUE"}
	if err := a.print(answer, columns(head, rows)+strings.Join(worst, "")); err != nil || len(worst) == 0 {
		return err
	}
	return exitDenied
}
