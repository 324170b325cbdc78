//go:build unix

package pgserver

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// binaryFolders are where packages put initdb and postgres when they do not put
// them on the PATH. A pattern's matches are tried newest version first.
var binaryFolders = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // PostgreSQL's own RPMs
	"/usr/lib/postgresql*/bin",                           // SUSE
	"/usr/libexec/postgresql*",                           // Alpine
	"/usr/local/pgsql/bin",                               // built from source
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew, Intel
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
}

// findBinaries lists the folders that have both initdb and postgres, best first. Debian's folder comes first, because the programs that Debian has on
// the PATH are wrappers.
func findBinaries(ctx context.Context) (folders []string) {
	add := func(folder string) {
		if target, err := filepath.EvalSymlinks(folder); err == nil {
			folder = target
		}
		if !slices.Contains(folders, folder) && isExecutable(folder, "initdb") && isExecutable(folder, "postgres") {
			folders = append(folders, folder)
		}
	}
	addPattern := func(pattern string) {
		matches, _ := filepath.Glob(pattern) // the patterns are well-formed
		newestFirst(matches)
		for _, folder := range matches {
			add(folder)
		}
	}

	addPattern(binaryFolders[0])
	if folder, err := pgConfig(ctx); err == nil {
		add(folder)
	}
	if postgres, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(postgres); err == nil {
			postgres = target
		}
		add(filepath.Dir(postgres))
	}
	for _, pattern := range binaryFolders[1:] {
		addPattern(pattern)
	}
	return folders
}

func pgConfig(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	return strings.TrimSpace(string(out)), err
}

func isExecutable(folder, name string) bool {
	info, err := os.Stat(filepath.Join(folder, name)) //nolint:gosec // G703: folders that the environment names are meant
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

var versionInPath = regexp.MustCompile(`\d+(\.\d+)?`)

// newestFirst sorts by the first number in each path: 17 before 9.6.
func newestFirst(folders []string) {
	version := func(folder string) float64 {
		n, _ := strconv.ParseFloat(versionInPath.FindString(folder), 64) // none: 0, last
		return n
	}
	slices.SortStableFunc(folders, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
}
