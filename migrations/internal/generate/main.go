// Command generate writes the newest numbered migration of functions from the files in
// the folder functions. "go generate ./migrations" runs it.
//
// Once that migration is published, and only then, run it with -release: it begins a
// new one, with the next number.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/pglimit/ratelimit/migrations/internal/functions"
)

func main() {
	dir := flag.String("dir", ".", "the `folder` migrations")
	release := flag.Bool("release", false, "begin a new migration: the newest one is published")
	flag.Parse()
	path, text, err := functions.Generate(*dir, *release)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // G306: a source file, which anybody may read
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
