package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/yamlfile"
	"github.com/pglimit/ratelimit/limits"
)

const limitsImportLong = `Set all rules of a YAML file (- is stdin) in one transaction, or none if one of
them is invalid. It prints the changes: + is new, - is what was there before.
Rules that are already there stay, and so do those that the file does not have,
unless --prune deletes them.

  limits:
    - {limiter: api, limit: 100/1m burst 20, note: the default}
    - limiter: api
      key: user:42            # or prefix: bot:
      action: deny   # or enforce (default), observe, allow, off, places
      expires_at: 2026-11-30T18:00:00Z
      note: ticket 7

Also max_wait and disabled. "pglimit limits export" writes such a file. There is
no time limit unless --timeout is given.`

func newLimitsImportCommand(a *app, f *limitsFlags) *cobra.Command {
	prune := false
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Set all rules of a YAML file, or none",
		Long:  limitsImportLong,
		Example: lines(
			"pglimit limits import limits.yaml --dry-run",
			"pglimit limits import limits.yaml --prune --note \"release 12\"",
		),
		Args:              takes("FILE"),
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
		RunE: func(cmd *cobra.Command, args []string) error {
			if prune && strings.TrimSpace(f.note) == "" {
				return usagef(cmd, "import --prune needs --note WHY, for the rules that it deletes")
			}
			rules, err := readRules(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("timeout") {
				f.timeout = 0 // how long it takes depends on the file
			}
			return a.importLimits(cmd.Context(), f, rules, limits.ImportConfig{Prune: prune, Note: f.note, By: f.by,
				DryRun: f.dryRun})
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&prune, "prune", false, "delete the rules that the file does not have")
	f.addWhyTo(cmd)
	flags.Lookup("note").Usage = "`WHY`, for rules that have no note, and for those that --prune deletes"
	flags.BoolVar(&f.dryRun, "dry-run", false, "change nothing, and print what it would change")
	return cmd
}

func (a *app) importLimits(ctx context.Context, f *limitsFlags, rules []limits.Rule, config limits.ImportConfig) error {
	var changed []limits.Change
	err := f.on(ctx, a, func(ctx context.Context, table *limits.Table) (err error) {
		changed, err = table.Import(ctx, rules, config)
		return err
	})
	if err != nil {
		return err
	}
	out := struct {
		DryRun  bool            `json:"dry_run"`
		Changed []limits.Change `json:"changed"`
	}{config.DryRun, changed}
	var text strings.Builder
	same := len(rules)
	for _, c := range changed {
		if c.After != nil {
			same--
		}
		for _, side := range []struct {
			sign string
			rule *limits.Rule
		}{{"- ", c.Before}, {"+ ", c.After}} {
			if side.rule != nil {
				text.WriteString(side.sign + ruleText(side.rule) + "\n")
			}
		}
	}
	summary := fmt.Sprintf("%d changed, %d as they were\n", len(changed), same)
	if config.DryRun {
		summary = "dry run, nothing was changed: " + summary
	}
	return a.print(out, text.String()+summary)
}

// rulesFile is what import reads and export writes.
type rulesFile struct {
	Limits []limitRule `yaml:"limits"`
}

func (file *rulesFile) yaml() ([]byte, error) {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := errors.Join(encoder.Encode(file), encoder.Close())
	return text.Bytes(), err
}

func readRules(stdin io.Reader, name string) ([]limits.Rule, error) {
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(stdin)
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	rules, err := parseRules(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return rules, nil
}

// ruleValues explains the values of the file.
var ruleValues = []yamlfile.Value{
	{Type: "main.rulesFile", Is: "a file of rules: write \"limits:\", and below that a list of rules",
		Fields: "limits"},
	{Type: "[]main.limitRule", Is: "a list of rules"},
	{Type: "main.limitRule", Is: "a rule", Fields: "limiter, key, prefix, action, limit, max_wait, disabled, " +
		"expires_at, note"},
	{Type: "time.Time", Is: "a time such as 2026-11-30T18:00:00Z"},
}

func parseRules(text []byte) ([]limits.Rule, error) {
	if err := yamlfile.Named(text); err != nil {
		return nil, err
	}
	var file rulesFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, yamlfile.Explain(text, err, ruleValues...)
	}
	if file.Limits == nil { // a file that says nothing must not prune everything
		return nil, errors.New("there are no limits in it: write \"limits:\", and below that a list of rules, or " +
			"\"limits: []\" for none")
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one YAML document in it: put all limits into the first")
	}
	var given struct {
		Limits []map[string]any `yaml:"limits"`
	}
	if err := yaml.Unmarshal(text, &given); err != nil {
		return nil, err
	}
	rules := make([]limits.Rule, len(file.Limits))
	for i := range file.Limits {
		for _, name := range []string{"limiter", "key", "prefix"} { // a blank must not mean all keys
			if value, is := given.Limits[i][name]; is && (value == nil || value == "") {
				return nil, fmt.Errorf("rule %d: %s is empty: leave it out for all", i+1, name)
			}
		}
		rules[i] = file.Limits[i].rule()
	}
	return rules, nil
}

func newLimitsExportCommand(a *app, f *limitsFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print the rules as YAML, for import",
		Long: "Print all rules that have not expired, including disabled ones, as YAML for\n" +
			"\"pglimit limits import\", whatever --output says: \"pglimit limits list\" prints\nJSON.",
		Example: lines(
			"pglimit limits export > limits.yaml",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rules, err := f.list(cmd.Context(), a)
			if err != nil {
				return err
			}
			file := rulesFile{Limits: []limitRule{}}
			for i := range rules {
				if !rules[i].Expired { // import refuses it
					file.Limits = append(file.Limits, newLimitRule(&rules[i]))
				}
			}
			text, err := file.yaml()
			if err == nil {
				_, err = a.stdout.Write(text)
			}
			return err
		},
	}
}
