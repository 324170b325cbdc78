//go:build unix

package pgserver

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// findBinaries lists the folders that have both initdb and postgres, best first. Debian's folder comes
// first, because the programs that Debian has on the PATH are wrappers.
func findBinaries() (folders []string) {
	add := func(candidates ...string) {
		newestFirst(candidates)
		for _, folder := range candidates {
			if target, err := filepath.EvalSymlinks(folder); err == nil {
				folder = target
			}
			if !slices.Contains(folders, folder) && isExecutable(folder, "initdb") && isExecutable(folder, "postgres") {
				folders = append(folders, folder)
			}
		}
	}
	for i, pattern := range binaryFolders {
		matches, _ := filepath.Glob(pattern) // the patterns are well-formed
		add(matches...)
		if postgres, err := exec.LookPath("postgres"); i == 0 && err == nil {
			if target, err := filepath.EvalSymlinks(postgres); err == nil {
				postgres = target
			}
			add(filepath.Dir(postgres))
		}
	}
	return folders
}

func isExecutable(folder, name string) bool {
	info, err := os.Stat(filepath.Join(folder, name))
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
