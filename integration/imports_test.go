package integration

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/pglimit/ratelimit"

// goList runs go list on packages of the module; one line each.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, complaint.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// isOf says whether a package is that one or below it.
func isOf(path string, parents ...string) bool {
	return slices.ContainsFunc(parents, func(parent string) bool {
		return path == parent || strings.HasPrefix(path, parent+"/")
	})
}

// A program that imports the limiter compiles pgx with what it needs, the cache of the memory of
// denials and the circuit breaker, which need nothing, us, and nothing else. Neither do its tests,
// if they decide in memory. The middleware for HTTP adds the standard library.
func TestLimiterAndStrategiesCostNothingButPgx(t *testing.T) {
	t.Parallel()
	deps := goList(t, "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./pglimit", "./pglimit/pglimittest", "./strategies", "./adapters/httplimit")
	if len(deps) < 10 || !slices.Contains(deps, "github.com/jackc/pgx/v5") {
		t.Fatalf("go list -deps says no more than: %q", deps)
	}
	for _, path := range deps {
		if !isOf(path, module+"/pglimit", module+"/strategies", module+"/semaphore", module+"/internal/bucket", module+"/internal/postgres", module+"/adapters/httplimit", module+"/adapters/internal", "github.com/jackc",
			"github.com/maypok86/otter", "github.com/sony/gobreaker", "golang.org/x/text", "golang.org/x/crypto", "golang.org/x/sync") {
			t.Errorf("pglimit, strategies and httplimit depend on %s", path)
		}
	}
}

// Some adapters are modules of their own, which go list ./... does not see. All of them show how
// an adapter of somebody else's is written: with what pglimit exports.
func TestAdaptersImportPglimitOnly(t *testing.T) {
	t.Parallel()
	read := 0
	err := filepath.WalkDir("../adapters", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.Contains(path, "adminlimit") { // a page of ours
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		read++
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			forTests := (strings.HasSuffix(path, "_test.go") || strings.Contains(path, "metertest")) && imported == module+"/pglimit/pglimittest"
			if isOf(imported, module) && imported != module+"/pglimit" && imported != module+"/pglimit/rate" && imported != module+"/semaphore" && !isOf(imported, module+"/adapters") && !forTests {
				t.Errorf("%s imports %s", path, imported)
			}
		}
		return nil
	})
	if err != nil || read < 8 {
		t.Errorf("%d files, %v", read, err)
	}
}
