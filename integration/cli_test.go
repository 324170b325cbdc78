package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the process is promised to answer: exit codes, what it prints where, and
// how it ends when it is told to.
func TestCLI(t *testing.T) {
	t.Parallel()
	binary := builtCLI(t)
	for name, test := range map[string]func(*testing.T, cli){
		"exit codes are the answer":                    cliAnswersByExitCode,
		"--durability is heeded":                       cliHeedsDurability,
		"JSON is for machines":                         cliPrintsJSON,
		"waits in line":                                cliWaitsInLine,
		"several limits, all or nothing":               cliTakesAllOrNothing,
		"an ID is charged once":                        cliChargesAnIDOnce,
		"a block is shown, and ended by reset":         cliShowsBlocks,
		"runs a command with a place":                  cliRunsACommand,
		"passes signals on to the command it runs":     cliPassesSignalsOn,
		"ends a command that has lost its place":       cliEndsACommandWithoutAPlace,
		"a place is held until all has ended":          cliHoldsAPlaceUntilAllHasEnded,
		"a keeper goes on, or its command is killed":   cliKeepsAPlace,
		"migrates up and down":                         cliMigrates,
		"migrates without btree_gist":                  cliMigratesWithoutBtreeGist,
		"prints SQL that makes the same schema":        cliPrintsSQL,
		"writes a file per version":                    cliWritesFiles,
		"says whose lock a migration waits for":        cliSaysWhoHasTheLock,
		"prints grants that are enough":                cliPrintsGrants,
		"keeps buckets in unlogged tables":             cliSetsStorage,
		"runs the handbook":                            cliRunsTheHandbook,
		"knows the commands of docs/bench.md":          cliKnowsTheCommandsOfBench,
		"resets every key of a limiter":                cliResetsAll,
		"pauses a key":                                 cliPauses,
		"changes limits":                               cliChangesLimits,
		"peeks by the rule of the table":               cliPeeksByTheRule,
		"sets places":                                  cliSetsPlaces,
		"imports and exports limits":                   cliImportsLimits,
		"refuses what is no limit, and who may not":    cliRefusesWrongLimits,
		"cleans up once":                               cliCleansUpOnce,
		"cleanup ends cleanly on Ctrl-C":               cliCleanupEndsOnInterrupt,
		"cleanup ends at once without migrations":      cliCleanupNeedsMigrations,
		"who is limited most":                          cliTop,
		"serve answers until SIGTERM, loses nothing":   cliServesUntilSIGTERM,
		"serve has the limits of the table":            cliServesTheTable,
		"serve starts without its database":            cliServeStartsWithoutDatabase,
		"serve reads its files again at SIGHUP":        cliServeReadsItsFilesAgain,
		"serve refuses what it cannot serve":           cliServeRefuses,
		"serve has a page":                             cliServesThePage,
		"the commands of docs/serve.md run":            cliRunsServeDocs,
		"works behind PgBouncer":                       cliWorksBehindPgBouncer,
		"an unreachable server is one line":            cliNamesUnreachableServer,
		"a database without migrations says so":        cliNeedsMigrations,
		"what a server answers is printed":             cliSaysWhatTheServerAnswered,
		"a wrong command line is one line":             cliRefusesWrongCommandLines,
		"PG* variables name the database":              cliReadsLibpqVariables,
		"--timeout ends a wait for a lock":             cliGivesUpAtTimeout,
		"signals end a wait for a lock, and a service": cliEndsOnSignals,
		"Ctrl-C ends a wait for a connection":          cliEndsWhileConnecting,
		"a second Ctrl-C kills it":                     cliIsKilledByASecondInterrupt,
		"nohup keeps it alive":                         cliOutlivesHangupUnderNohup,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cli{binary: binary})
		})
	}
}

// buildCLI builds the command for the tests of this binary, into a folder that TestMain removes.
var buildCLI = sync.OnceValues(func() (folder string, err error) {
	if folder, err = os.MkdirTemp("", "pglimit-test-"); err != nil {
		return "", err
	}
	built = folder
	if out, err := exec.Command("go", "build", "-o", filepath.Join(folder, "pglimit"), "../cmd/pglimit").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return folder, nil
})

// built is set by buildCLI, and read when the tests have ended.
var built string

func builtCLI(t *testing.T) (binary string) {
	t.Helper()
	folder, err := buildCLI()
	must(t, err)
	return filepath.Join(folder, "pglimit")
}

// cli runs the binary in an environment that holds env and nothing of the
// tester's that names a database.
type cli struct {
	binary string
	env    []string
}

// on is the binary with DATABASE_URL set to a new, empty database.
func (c cli) on(t *testing.T) (cli, *pgxpool.Pool) {
	t.Helper()
	url := newDatabase(t)
	c.env = []string{"DATABASE_URL=" + url}
	return c, migrationPool(t, url)
}

// onMigrated is the binary with DATABASE_URL set to a new, migrated database.
func (c cli) onMigrated(t *testing.T) (cli, *pgxpool.Pool) {
	t.Helper()
	url := databaseURL(newMigrated(t))
	c.env = []string{"DATABASE_URL=" + url}
	return c, migrationPool(t, url)
}

type result struct {
	args           []string
	code           int
	stdout, stderr string
}

func (c cli) command(ctx context.Context, t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, name, args...)
	command.Env = append([]string{"PATH=" + filepath.Dir(c.binary) + ":" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, c.env...)
	return command
}

func (c cli) run(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // one that hangs
	defer cancel()
	return resultOf(t, c.command(ctx, t, c.binary, args...))
}

func resultOf(t *testing.T, command *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{command.Args[1:], command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// exits checks the exit code.
func (r result) exits(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("%q exits with %d, not %d\nstdout: %s\nstderr: %s", r.args, r.code, code, r.stdout, r.stderr)
	}
	return r
}

// fails checks that the command exits with 2 and says one line, with all the parts.
func (r result) fails(t *testing.T, parts ...string) {
	t.Helper()
	r.exits(t, 2)
	if !strings.HasPrefix(r.stderr, "pglimit: ") || strings.Count(r.stderr, "\n") != 1 || strings.Count(r.stderr, "pglimit: ") != 1 {
		t.Errorf("%q does not print one line that begins with its name:\n%s", r.args, r.stderr)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("%q does not say %q, but %s", r.args, part, r.stderr)
		}
	}
}

// prints checks what is on stdout.
func (r result) prints(t *testing.T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(r.stdout, part) {
			t.Errorf("%q does not print %q, but\n%s", r.args, part, r.stdout)
		}
	}
}
