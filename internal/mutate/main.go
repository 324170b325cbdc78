// Command mutate plants faults in the code, one at a time, and says which of them no test notices.
//
//	go run ./internal/mutate -list                         the faults that would be planted
//	go run ./internal/mutate -n 20 -only take_many -quick  twenty of them, in lines that have that text
//	go run ./internal/mutate -seed 7                       others; a fault is drawn by its seed
//
// A fault is one operator, word or statement changed: "<" to "<=", "greatest" to "least", a call left out. The tree is
// not touched: functions of SQL are created again in the databases of the tests, and Go's compiler gets an overlay.
// Most faults are noticed in ten seconds, by the replay of SQL or by the tests of their own package. One that these miss
// takes the time of the whole suite, unless -quick is given. The command ends with 1 if a fault survives that
// equivalent.txt does not list.
package main

import (
	"bufio"
	"bytes"
	"cmp"
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
	only := flag.String("only", "", "plant faults whose line, as it is printed, has this text")
	quick := flag.Bool("quick", false, "run only the first tests: plant what they miss again, without this")
	list := flag.Bool("list", false, "print the faults, plant none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	survived, err := run(ctx, os.Stdout, *n, *seed, *only, *quick, *list)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(2) //nolint:forbidigo // this is main
	case survived > 0:
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(ctx context.Context, out io.Writer, n int, seed uint64, only string, quick, list bool) (survived int, err error) {
	all, err := faults()
	if err != nil {
		return 0, err
	}
	all = slices.DeleteFunc(all, func(f fault) bool {
		return !strings.Contains(f.String(), only) || strings.Contains(equivalent, f.String()+"\n")
	})
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system's temporary folder
	if !list {              // the tests as they are: they are those of a fault in SQL
		if err := build(ctx, filepath.Join(dir, "integration.test"), "integration"); err != nil {
			return 0, err
		}
	}
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	planted := 0
	for _, f := range all {
		if planted == n || ctx.Err() != nil {
			break
		}
		planted++
		if list {
			fmt.Fprintln(out, f) //nolint:errcheck // stdout is gone
			continue
		}
		start := time.Now()
		noticed, err := plant(ctx, dir, f, quick)
		if err != nil {
			return survived, err
		}
		if noticed == "" {
			survived++
		}
		fmt.Fprintf(out, "%4.0f s  %s\n        %s\n", //nolint:errcheck // stdout is gone
			time.Since(start).Seconds(), f, cmp.Or(noticed, "SURVIVED"))
	}
	fmt.Fprintf(out, "%d faults of %d, %d survived (seed %d)\n", //nolint:errcheck // stdout is gone
		planted, len(all), survived, seed)
	return survived, ctx.Err()
}

// trial is a folder whose tests run, and which of them.
type trial struct {
	dir  string
	args []string
}

const (
	// unrelated tests do not run what faults are planted in, or compare functions with those that have none.
	unrelated = "-test.skip=TestBuiltSchema|TestWhatDiffersIsNamedAndPutBack|TestTheGeneratedMigration|" +
		"Docs|README|GoCommands|Help|Example|Migrat|Schedul|Standby|Backup|Schema"
	quickest = "-test.run=TestReplay$/token_bucket|TestReplayOf|DecideAsGoDoes|TestSQLSaysOfEveryRow|" +
		"TestConformance//DecidesAsInMemory"
)

// plant says which test noticed the fault, or nothing. The cheapest tests run first, until one fails. For a fault in a
// function of SQL they need not be built again.
func plant(ctx context.Context, dir string, f fault, quick bool) (noticed string, err error) {
	faulty := bytes.Join([][]byte{f.old[:f.from], []byte(f.text), f.old[f.to:]}, nil)
	file, overlay := filepath.Join(dir, "faulty"), filepath.Join(dir, "overlay.json")
	binary := filepath.Join(dir, "faulty.test")
	abs, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{abs: file}})
	if err != nil {
		return "", err
	}
	all := trial{"integration", []string{unrelated}}
	trials := []trial{{filepath.Dir(f.file), nil}, {"pglimit", nil}, all}
	if strings.HasPrefix(f.file, "strategies") {
		trials[1] = trial{"integration", []string{unrelated, "-test.run=TestReplay|TestConformance"}}
	}
	isSQL := strings.HasSuffix(f.file, ".sql")
	if isSQL {
		faulty, _, _ = bytes.Cut(faulty, []byte("-- +goose Down"))
		binary = filepath.Join(dir, "integration.test")
		trials = []trial{{"integration", []string{unrelated, quickest}}, all}
	}
	if quick {
		trials = trials[:len(trials)-1]
	}
	if err := errors.Join(os.WriteFile(file, faulty, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return "", err
	}
	for i, t := range trials {
		if i > 0 && !isSQL && t.dir == trials[i-1].dir {
			continue
		}
		if !isSQL && build(ctx, binary, t.dir, "-overlay", overlay) != nil {
			return "no code", ctx.Err()
		}
		if noticed, err := test(ctx, binary, file, t); noticed != "" || err != nil {
			return noticed, err
		}
	}
	return "", ctx.Err()
}

// build the tests of a folder, if it has any.
func build(ctx context.Context, binary, dir string, flags ...string) error {
	_ = os.Remove(binary)
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-o", binary}, flags, []string{"./" + dir})
	return exec.CommandContext(ctx, "go", args...).Run()
}

// test says which is the first test that fails, and ends the others then.
func test(ctx context.Context, binary, functions string, t trial) (failed string, err error) {
	if _, err := os.Stat(binary); err != nil {
		return "", nil // the folder has no tests
	}
	within := 3 * time.Minute // a fault may make a test wait for ever
	if t.dir == "integration" {
		within = 20 * time.Minute
	}
	ending, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	cmd := exec.CommandContext(ending, binary, append([]string{"-test.v", "-test.failfast"}, t.args...)...)
	cmd.Dir = t.dir
	if strings.HasSuffix(binary, "integration.test") {
		cmd.Env = append(os.Environ(), "PGLIMIT_TEST_FUNCTIONS="+functions)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", err
	}
	lines := bufio.NewReader(out)
	for line, err := lines.ReadString('\n'); err == nil && failed == ""; line, err = lines.ReadString('\n') {
		if _, name, is := strings.Cut(line, "--- FAIL: "); is {
			failed = strings.TrimSpace(name)
			cancel()
		}
	}
	if err := cmd.Wait(); err != nil && failed == "" {
		failed = t.dir + ": " + err.Error() // it panicked, or did not end
	}
	return failed, ctx.Err()
}
