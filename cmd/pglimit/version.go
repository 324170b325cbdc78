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
		Long:    "Print the version of this pglimit, its commit, the Go that built it, and its\nnewest migration.",
		Example: lines("pglimit version --output json"),
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			info, _ := debug.ReadBuildInfo()
			v, err := newVersionJSON(info)
			if err != nil {
				return err
			}
			return a.print(v, v.text())
		},
	}
}

// moduleVersion is printed by --version; the command version prints more.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

type versionJSON struct {
	Version   string `json:"version"`  // "(devel)" or "unknown" outside a released module
	Commit    string `json:"commit"`   // "" if the build did not record it
	Modified  bool   `json:"modified"` // the commit had local changes
	Go        string `json:"go"`
	Platform  string `json:"platform"`
	Migration string `json:"migration"` // the newest, such as 00003_functions
}

func newVersionJSON(info *debug.BuildInfo) (versionJSON, error) {
	v := versionJSON{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		if info.Main.Version != "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	files, err := fs.Glob(migrations.FS, "sql/*.sql") // by name, which is by version
	if err != nil || len(files) == 0 {
		return v, fmt.Errorf("this build has no migrations: %w", err)
	}
	v.Migration = strings.TrimSuffix(path.Base(files[len(files)-1]), ".sql")
	return v, nil
}

func (v versionJSON) text() string {
	commit := v.Commit
	switch {
	case commit == "":
		commit = "unknown"
	case v.Modified:
		commit += " (modified)"
	}
	return fmt.Sprintf("pglimit %s\ncommit:    %s\ngo:        %s %s\nmigration: %s\n", v.Version, commit, v.Go,
		v.Platform, v.Migration)
}
