package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

const migrateSQLLong = `Print the migrations as SQL, or write them to files, for people who migrate with
another tool. It needs no database.

The text has no transaction of its own: give it one. It records what it
applies, so that "pglimit migrate status" knows about it. --output does not
change it. --from and --to select versions, both included.

With --dir each version goes into a file of its own, named as the tool wants it.
A file that exists with another text is never overwritten: then no file is
written, and the exit code is 2.

Give the tool a folder and a version table (Flyway: schema history table) for
these files alone, because their versions begin with 1. The table must not be
pglimit.goose_db_version, which the files write by themselves. After the files
for Atlas, run "atlas migrate hash".`

func newMigrateSQLCommand(a *app) *cobra.Command {
	var span migrations.Span
	dir, format := "", string(migrations.GolangMigrate)
	cmd := &cobra.Command{
		Use:   "sql [--from VERSION] [--to VERSION] [--down] [--dir DIR]",
		Short: "Print the migrations as SQL, for another tool",
		Long:  migrateSQLLong,
		Example: lines(
			"pglimit migrate sql | psql -1 -v ON_ERROR_STOP=1 \"$DATABASE_URL\"",
			"pglimit migrate sql --from 3 > V7__pglimit_3.sql",
			"pglimit migrate sql --down --from 3",
			"pglimit migrate sql --dir db/pglimit --format flyway",
		),
		Args:                  noArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := cmd.Flags()
			for name, version := range map[string]int64{"from": span.From, "to": span.To} {
				if flags.Changed(name) && version < 1 {
					return fmt.Errorf("--%s is %d: versions begin with 1", name, version)
				}
			}
			if dir != "" {
				return a.writeFiles(dir, migrations.Format(format), span)
			}
			if flags.Changed("dir") {
				return errors.New("--dir is empty: it must name a folder")
			}
			if flags.Changed("format") {
				return usagef(cmd, "--format needs a --dir to write the files to")
			}
			text, err := span.SQL()
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.stdout, text)
			return err
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&span.From, "from", 0, "first `VERSION` (default: 1)")
	flags.Int64Var(&span.To, "to", 0, "last `VERSION` (default: the newest of this release)")
	flags.BoolVar(&span.Down, "down", false, "print the SQL that undoes them instead")
	flags.BoolVar(&span.WithoutExclusionRange, "without-exclusion-range", false,
		"leave out the strategy exclusion_range, which needs the extension btree_gist")
	flags.StringVar(&dir, "dir", "", "write a file per version to this `DIR`, made if it is not there")
	var formats []string
	for _, f := range migrations.Formats() {
		formats = append(formats, string(f))
	}
	choiceVar(cmd, flags, &format, "format", "`TOOL` that the files are for", formats...)
	complete(cmd, "dir", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	})
	return cmd
}

// writeFiles writes a file per version. If one of them exists with another text, it writes none.
func (a *app) writeFiles(dir string, format migrations.Format, span migrations.Span) error {
	files, err := span.Files(format)
	if err != nil {
		return err
	}
	var missing []migrations.File
	for _, file := range files {
		path := filepath.Join(dir, file.Name)
		switch there, err := os.ReadFile(path); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, file)
		case err != nil:
			return err
		case string(there) != file.Text:
			return fmt.Errorf("%s is there and says something else: nothing is written; give another --dir, or "+
				"--from a later version", path)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // G301: anybody may read source files
		return err
	}
	for _, file := range missing {
		path := filepath.Join(dir, file.Name)
		if err := os.WriteFile(path, []byte(file.Text), 0o644); err != nil { //nolint:gosec // G306: as above
			return err
		}
		if _, err := io.WriteString(a.stdout, "wrote "+path+"\n"); err != nil {
			return err
		}
	}
	return nil
}
