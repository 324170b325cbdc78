package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
)

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// newBenchProgress returns a function that says on one line what runs, or nil if w is no terminal.
func newBenchProgress(w io.Writer) func(bench.Progress) {
	if !isTerminal(w) {
		return nil
	}
	const empty = "\r\x1b[K"
	return func(p bench.Progress) {
		line := fmt.Sprintf("%d/%d %s, %s: %v", p.Number, p.Of, p.Scenario, p.Strategy, p.Length)
		if p == (bench.Progress{}) {
			line = ""
		}
		_, _ = io.WriteString(w, empty+line) // a line that cannot be written is no reason to stop
	}
}
