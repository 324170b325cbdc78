package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// newBenchProgress returns a function that says on one line what runs, or nil if w is no terminal.
func newBenchProgress(w io.Writer) func(string) {
	if !isTerminal(w) {
		return nil
	}
	const empty = "\r\x1b[K"
	return func(line string) {
		_, _ = io.WriteString(w, empty+line) // a line that cannot be written is no reason to stop
	}
}
