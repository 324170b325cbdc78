// Command generate writes the migration of functions, and those of distributed tables, from the files in the folder
// functions. "go generate ./migrations" runs it.
package main

import (
	"fmt"
	"os"

	"github.com/pglimit/ratelimit/migrations/internal/functions"
)

func main() {
	for path, generate := range map[string]func(string) (string, error){
		functions.Path: functions.Generate, functions.DistributedPath: functions.GenerateDistributed,
	} {
		text, err := generate(".")
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // G306: a source file, which anybody may read
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}
