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

// The house's never-rules, which .golangci.yaml tells an editor, hold for the graph
// of imports.
func TestWhoImportsWhom(t *testing.T) {
	t.Parallel()
	const (
		ours           = module
		pglimit        = module + "/pglimit"
		vocabulary     = module + "/pglimit/rate"
		stages         = module + "/pglimit/internal"
		forTests       = module + "/pglimit/pglimittest"
		strategies     = module + "/strategies"
		conformance    = strategies + "/strategytest"
		migrations     = module + "/migrations"
		cleanup        = module + "/cleanup"
		limits         = module + "/limits"
		permits        = module + "/semaphore"
		cmd            = module + "/cmd"
		integration    = module + "/integration"
		examples       = module + "/examples"
		internal       = module + "/internal"
		speaking       = internal + "/postgres"
		testcontainers = "github.com/testcontainers"
		goose          = "github.com/pressly/goose"
		gocron         = "github.com/go-co-op/gocron"
	)
	rules := []struct {
		rule      string
		who, what func(path string) bool
		tests     bool // the rule is for tests too
	}{
		{
			"pglimit imports the arithmetic of a bucket, what speaks to Postgres, and nothing else of ours",
			func(p string) bool { return isOf(p, pglimit) && !isOf(p, forTests) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, pglimit, ours+"/internal/bucket", speaking) || isOf(p, forTests)
			},
			false,
		},
		{
			"what is for users' tests imports the limiter, the vocabulary and the arithmetic of a bucket",
			func(p string) bool { return isOf(p, forTests) },
			func(p string) bool {
				return isOf(p, ours) && p != pglimit && p != vocabulary && p != ours+"/internal/bucket"
			},
			false,
		},
		{
			"the vocabulary imports the standard library only",
			func(p string) bool { return isOf(p, vocabulary) },
			func(p string) bool { return strings.Contains(p, ".") },
			false,
		},
		{
			"a stage knows neither the Limiter nor another stage",
			func(p string) bool { return isOf(p, stages) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, vocabulary, stages+"/wait", ours+"/internal/bucket")
			},
			false,
		},
		{
			"strategies import the vocabulary, the arithmetic of a bucket, what speaks to Postgres, and nothing else of ours",
			func(p string) bool { return isOf(p, strategies) && !isOf(p, conformance) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, vocabulary, strategies, ours+"/internal/bucket", speaking) || isOf(p, conformance)
			},
			false,
		},
		{
			"the suite that strategies pass opens sessions besides, and compares with what decides in memory",
			func(p string) bool { return isOf(p, conformance) },
			func(p string) bool {
				return isOf(p, ours) && p != forTests && !isOf(p, vocabulary, strategies, ours+"/internal/bucket", speaking)
			},
			false,
		},
		{
			"migrations imports the vocabulary and what speaks to Postgres at most",
			func(p string) bool { return isOf(p, migrations) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, migrations, vocabulary, speaking)
			},
			false,
		},
		{
			"cleanup and limits import the vocabulary and what speaks to Postgres at most",
			func(p string) bool { return isOf(p, cleanup, limits) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, cleanup, limits, vocabulary, speaking)
			},
			false,
		},
		{
			"semaphore imports the vocabulary and what speaks to Postgres at most",
			func(p string) bool { return isOf(p, permits) },
			func(p string) bool {
				return isOf(p, ours) && !isOf(p, permits, vocabulary, speaking)
			},
			false,
		},
		{
			"what is internal to all serves the others and imports the vocabulary at most",
			func(p string) bool { return isOf(p, internal) },
			func(p string) bool { return isOf(p, ours) && !isOf(p, internal, vocabulary) },
			false,
		},
		{
			// pgserver is the throwaway Postgres, which users need not copy; browsertest is for tests.
			"an example is written with what users can import",
			func(p string) bool { return isOf(p, examples) },
			func(p string) bool {
				return isOf(p, ours) && p != pglimit && p != strategies && p != migrations && p != cleanup && p != forTests && p != internal+"/pgserver" && p != internal+"/browsertest" &&
					!isOf(p, ours+"/adapters", examples)
			},
			true,
		},
		{
			"nothing imports an example",
			func(p string) bool { return !isOf(p, examples) },
			func(p string) bool { return isOf(p, examples) },
			true,
		},
		{
			"nothing imports cmd",
			func(p string) bool { return !isOf(p, cmd) },
			func(p string) bool { return isOf(p, cmd) },
			true,
		},
		{
			"nothing imports integration",
			func(p string) bool { return !isOf(p, integration) },
			func(p string) bool { return isOf(p, integration) },
			true,
		},
		{
			"testcontainers stays in integration",
			func(p string) bool { return !isOf(p, integration) },
			func(p string) bool { return isOf(p, testcontainers) },
			true,
		},
		{
			"goose stays in migrations",
			func(p string) bool { return !isOf(p, migrations) },
			func(p string) bool { return isOf(p, goose) },
			true,
		},
		{
			// The tests of cleanup that need a database hand it a scheduler.
			"gocron stays in cleanup",
			func(p string) bool { return !isOf(p, cleanup, integration) },
			func(p string) bool { return isOf(p, gocron) },
			true,
		},
		{
			"embedded-postgres is for pgserver only, and pgserver for commands, examples and tests",
			func(p string) bool { return !isOf(p, internal+"/pgserver", cmd, examples) },
			func(p string) bool { return isOf(p, "github.com/fergusstrange", internal+"/pgserver") },
			false,
		},
		{
			"lib/pq is for tests only",
			func(string) bool { return true },
			func(p string) bool { return isOf(p, "github.com/lib/pq") },
			false,
		},
	}
	const perPackage = "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}\n{{.ImportPath}} tests {{range .TestImports}} {{.}}{{end}}{{range .XTestImports}} {{.}}{{end}}"
	applied := make([]bool, len(rules)) // one that never is has been outlived by a rename
	for _, line := range goList(t, "-f", perPackage, "./...") {
		importer, list, _ := strings.Cut(line, " ")
		imports, ofTests := strings.CutPrefix(list, "tests ")
		for i, rule := range rules {
			if !rule.who(importer) || ofTests && !rule.tests {
				continue
			}
			applied[i] = true
			for imported := range strings.FieldsSeq(imports) {
				if rule.what(imported) {
					t.Errorf("%s: %s imports %s", rule.rule, importer, imported)
				}
			}
		}
	}
	for i, rule := range rules {
		if !applied[i] {
			t.Errorf("%s: there is no such package", rule.rule)
		}
	}
}

// The house from the ground up: a package imports only what stands before it. With -v it
// draws the arrows.
func TestNoArrowRunsBack(t *testing.T) {
	t.Parallel()
	house := []string{
		"pglimit/rate", "internal/bucket", "internal/postgres",
		"pglimit/internal/registry", "pglimit/internal/shards", "pglimit/internal/wait", "pglimit/internal/denials", "pglimit/internal/lease", "pglimit/internal/combine", "pglimit/internal/queue", "pglimit/internal/circuit", "pglimit/internal/limits", "pglimit/internal/local", "pglimit/internal/adjust",
		"pglimit",
		"pglimit/pglimittest",
		"semaphore",
		"adapters/internal/failures", "adapters/internal/metertest", "adapters/internal/passed", "adapters/httplimit", "adapters/promlimit",
		"strategies/internal/rows", "strategies/internal/warmup", "strategies/internal/window", "strategies",
		"strategies/audit", "strategies/strategytest/model", "strategies/strategytest",
		"migrations/internal/functions", "migrations/internal/generate", "migrations",
		"cleanup", "limits",
		"internal/published", "internal/pgserver", "internal/browsertest",
		"cmd/pglimit/internal/yamlfile",
		"cmd/pglimit/internal/bench/result", "cmd/pglimit/internal/bench/result/resulttest",
		"cmd/pglimit/internal/bench/compare", "cmd/pglimit/internal/bench/text", "cmd/pglimit/internal/bench/gate",
		"cmd/pglimit/internal/bench/chart", "cmd/pglimit/internal/bench/report",
		"cmd/pglimit/internal/bench/wire", "cmd/pglimit/internal/bench/trouble", "cmd/pglimit/internal/bench/scenario",
		"cmd/pglimit/internal/bench", "cmd/pglimit/internal/serve", "cmd/pglimit",
		"examples/hello", "examples/plans", "examples/login", "examples/worker", "examples/llm", "examples/nodatabase", "examples/service/internal/live", "examples/service/internal/load", "examples/service",
		"deploy",
		"integration",
	}
	for _, line := range goList(t, "-f", "{{.ImportPath}}{{range .Imports}} {{.}}{{end}}", "./...") {
		imports := strings.Fields(line)
		importer := strings.TrimPrefix(imports[0], module+"/")
		floor := slices.Index(house, importer)
		if floor < 0 {
			t.Errorf("%s has no place in the house", importer)
			continue
		}
		arrows := ""
		for _, imported := range imports[1:] {
			imported, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			arrows += " " + imported
			if slices.Index(house, imported) >= floor {
				t.Errorf("%s imports %s, which stands above it", importer, imported)
			}
		}
		t.Logf("%s →%s", importer, arrows)
	}
}

// Some adapters are modules of their own, which go list ./... does not see. All of them show how
// an adapter of somebody else's is written: with what pglimit exports.
func TestAdaptersImportPglimitOnly(t *testing.T) {
	t.Parallel()
	read := 0
	err := filepath.WalkDir("../adapters", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
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
