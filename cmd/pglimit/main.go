// Command pglimit keeps rate limits in PostgreSQL: it migrates the database,
// decides from a shell script or over HTTP, cleans up, and compares the strategies under
// load. "pglimit --help" lists the commands; a command's exit code is its
// answer: 0 yes or done, 1 no, 2 failed (one line on stderr says why), 130 ended
// by Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	cobra.EnableCommandSorting = false // help lists commands in the order in which a new user needs them
	ctx, stop := untilSignal(context.Background())
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program, without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand(&app{args: args, stdout: stdout, stderr: stderr})
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)

	var code exitCode
	var ended endedBySignal
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(context.Cause(ctx), &ended) && (errors.Is(err, context.Canceled) || errors.Is(err, ended)):
		return ended.exitCode()
	}
	_, _ = fmt.Fprintln(stderr, "pglimit: "+oneLine(err))
	return int(exitFailed)
}
