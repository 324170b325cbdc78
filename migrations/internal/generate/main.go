// Command generate writes the migration of functions from the files in the folder functions.
// "go generate ./migrations" runs it.
package main

import (
	"fmt"
	"os"

	"github.com/pglimit/ratelimit/migrations/internal/functions"
)

func main() {
	text, err := functions.Generate(".")
	if err == nil {
		err = os.WriteFile(functions.Path, []byte(text), 0o644) //nolint:gosec // G306: a source file, which anybody may read
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
