// Command mutate plants faults in the code, one at a time, and says which of them no test notices.
//
//	go run ./internal/mutate -list                  the faults that would be planted
//	go run ./internal/mutate -n 20 -only take_many  twenty of them, in files whose path has that text
//	go run ./internal/mutate -seed 7                others; a fault is drawn by its seed
//
// A fault is one operator, word or statement changed: "<" to "<=", "greatest" to "least", a call left out. The tree is
// not touched: the compiler gets an overlay. One fault takes up to the time of the whole suite, so run it overnight. It
// ends with 1 if a fault survives that equivalent.txt does not list.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fault replaces a part of a file.
type fault struct {
	file     string // from the root of the module
	place    string // the file that a person would change
	from, to int    // bytes that are replaced
	text     string
	old      []byte // the file
}

func (f fault) String() string {
	start := bytes.LastIndexByte(f.old[:f.from], '\n') + 1
	end := f.to + bytes.IndexByte(f.old[f.to:], '\n')
	planted := string(f.old[start:f.from]) + "«" + string(f.old[f.from:f.to]) + " → " + f.text + "»" + string(f.old[f.to:end])
	return fmt.Sprintf("%s: %s", f.place, strings.Join(strings.Fields(planted), " "))
}

// equivalent lists faults that change nothing that anybody could see, as they are printed, each behind its reason.
//
//go:embed equivalent.txt
var equivalent string

func main() {
	n := flag.Int("n", 150, "how many faults to plant")
	seed := flag.Uint64("seed", 1, "draws the faults")
	only := flag.String("only", "", "plant in files whose path has this text")
	list := flag.Bool("list", false, "print the faults, plant none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	survived, err := run(ctx, os.Stdout, *n, *seed, *only, *list)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2) //nolint:forbidigo // this is main
	case survived > 0:
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, out io.Writer, n int, seed uint64, only string, list bool) (survived int, err error) {
	all, err := faults(only)
	if err != nil {
		return 0, err
	}
	if !list { // or every fault would seem to be noticed
		if err := test(ctx, nil, append(slices.Clone(packages), "./integration")...); err != nil {
			return 0, fmt.Errorf("the tests fail without a fault: %w", err)
		}
	}
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	planted := 0
	for _, f := range all {
		if planted == n || ctx.Err() != nil {
			break
		}
		if strings.Contains(equivalent, f.String()+"\n") {
			continue
		}
		planted++
		if list {
			fmt.Fprintln(out, f) //nolint:errcheck // stdout is gone
			continue
		}
		start := time.Now()
		what, err := plant(ctx, f)
		if err != nil {
			return survived, err
		}
		if what == "SURVIVED" {
			survived++
		}
		fmt.Fprintf(out, "%-12s %4.0f s  %s\n", what, time.Since(start).Seconds(), f) //nolint:errcheck // stdout is gone
	}
	fmt.Fprintf(out, "%d faults of %d, %d survived (seed %d)\n", planted, len(all), survived, seed) //nolint:errcheck // stdout is gone
	return survived, ctx.Err()
}

// plant runs the tests with the fault, those of its own package first.
func plant(ctx context.Context, f fault) (string, error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's temporary folder
	faulty := bytes.Join([][]byte{f.old[:f.from], []byte(f.text), f.old[f.to:]}, nil)
	overlay := filepath.Join(dir, "overlay.json")
	abs, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{abs: filepath.Join(dir, "faulty")}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "faulty"), faulty, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	flags := []string{"-overlay", overlay}
	if err := command(ctx, "build", flags, "./..."); err != nil {
		return "no code", ctx.Err()
	}
	for _, packages := range tests(f.file) {
		if err := test(ctx, flags, packages...); err != nil {
			return "noticed", ctx.Err()
		}
	}
	return "SURVIVED", ctx.Err()
}

// test skips what compares the schema with the checksums of the one without a fault.
func test(ctx context.Context, flags []string, packages ...string) error {
	const sums = "TestBuiltSchema|TestWhatDiffersIsNamedAndPutBack|TestTheGeneratedMigration"
	return command(ctx, "test", append(flags, "-vet=off", "-failfast", "-timeout=20m", "-skip="+sums), packages...)
}

// packages whose code and tests decide.
var packages = []string{"./pglimit/...", "./strategies/...", "./semaphore/...", "./cleanup/..."}

// tests returns what to run, the cheapest first.
func tests(file string) [][]string {
	if strings.HasSuffix(file, ".sql") {
		return [][]string{{"-run=Replay|Functions|Conformance", "./integration"}, {"./integration"}}
	}
	return [][]string{
		{"./" + filepath.Dir(file)},
		packages,
		{"./integration"},
	}
}

func command(ctx context.Context, verb string, flags []string, packages ...string) error {
	args := append(append([]string{verb}, flags...), packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}
