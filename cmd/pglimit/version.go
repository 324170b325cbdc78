package main

import (
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this pglimit",
		Long:    "Print the version of this pglimit, the Go that built it, and its newest\nmigration.",
		Example: lines("pglimit version --output json"),
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := fs.Glob(migrations.FS, "sql/*.sql") // by name, which is by version
			if err != nil || len(files) == 0 {
				return fmt.Errorf("this build has no migrations: %w", err)
			}
			v := struct {
				Version   string `json:"version"`
				Go        string `json:"go"`
				Migration string `json:"migration"` // the newest, such as 00003_functions
			}{moduleVersion(), runtime.Version(), strings.TrimSuffix(path.Base(files[len(files)-1]), ".sql")}
			return a.print(v, fmt.Sprintf("pglimit %s\ngo:        %s\nmigration: %s\n", v.Version, v.Go, v.Migration))
		},
	}
}

// moduleVersion has the commit, and whether it was changed, if this is no release.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
