package main

import (
	"bytes"
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// call runs the program inside the test.
func call(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(ctx, args, &out, &err)
	return code, out.String(), err.String()
}

func TestSignalledCommandExitsSilentlyWithTheSignalsCode(t *testing.T) {
	t.Parallel()
	for signal, want := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(endedBySignal{signal})
		code, _, stderr := call(ctx, "allow", "k", "--limit", "1/s", "--database-url", "postgres://127.0.0.1:1/x")
		if code != want || stderr != "" {
			t.Errorf("%v: exit code %d, stderr %q", signal, code, stderr)
		}
	}
}

// A wrong command line is reported even after Ctrl-C: it is not what the signal
// ended.
func TestSignalDoesNotHideOtherErrors(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(endedBySignal{syscall.SIGINT})
	if code, _, stderr := call(ctx, "allow"); code != 2 || !strings.Contains(stderr, "KEY") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

func TestUsageShowsEachCommandAsItIsCalled(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"":        "Usage:\n  pglimit [command]\n\n",
		"migrate": "Usage:\n  pglimit migrate [command]\n\n",
		"allow":   "Usage:\n  pglimit allow KEY --limit TOKENS/PERIOD [flags]\n\n",
	} {
		code, stdout, _ := call(t.Context(), append(strings.Fields(command), "--help")...)
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%q --help (exit code %d) does not show %q:\n%s", command, code, want, stdout)
		}
	}
}

func TestCompletionFailsOnUnknownNames(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"completion", "nosuch"}, {"completion"}} {
		if code, stdout, stderr := call(t.Context(), args...); code != 2 || stdout != "" || !strings.HasPrefix(stderr, "pglimit: ") {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		for _, sub := range command.Commands() {
			switch {
			case sub.Name() == "help" || sub.Name() == "completion": // cobra's
				continue
			case sub.Short == "" || sub.Long == "" || sub.Example == "":
				t.Errorf("%s has no Short, Long or Example", sub.CommandPath())
			case !command.HasParent() && sub.GroupID == "":
				t.Errorf("%s is in no group", sub.CommandPath())
			}
			visit(sub)
		}
	}
	visit(newRootCommand(&app{}))
}

// The versions in the examples are those of this release.
func TestExamplesOfMigrateSQLWork(t *testing.T) {
	t.Chdir(t.TempDir())
	for line := range strings.Lines(newMigrateSQLCommand(&app{}).Example) {
		line, _, _ = strings.Cut(line, "|")
		line, _, _ = strings.Cut(line, ">")
		if code, stdout, stderr := call(t.Context(), strings.Fields(line)[1:]...); code != 0 || stdout == "" {
			t.Errorf("%s: exit code %d, %s", line, code, stderr)
		}
	}
}

func TestShellCompletesNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want string
		line []string
	}{
		{"token_bucket\nupsert\nfor_update_nowait\nexclusion_range\nsliding_window\nsliding_log\nwarm_up\n:4\n", []string{"allow", "--strategy", ""}},
		{"relaxed\ndurable\n:4\n", []string{"allow", "--durability", ""}},
		{"text\njson\n:4\n", []string{"storage", "--output", ""}},
		{"status\tList the migrations, and which the database has\n:4\n", []string{"migrate", "st"}},
		{":4\n", []string{"allow", ""}}, // no file names
	} {
		if _, stdout, _ := call(t.Context(), append([]string{"__complete"}, test.line...)...); stdout != test.want {
			t.Errorf("%q completes to %q, not %q", test.line, stdout, test.want)
		}
	}
}
