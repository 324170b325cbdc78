package main

import (
	"os"

	"golang.org/x/term"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/text"
)

// textOptions has colours on a terminal only, and not where NO_COLOR is set
// (https://no-color.org).
func (a *app) textOptions() text.Options {
	file, ok := a.stdout.(*os.File)
	return text.Options{Colour: ok && term.IsTerminal(int(file.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}
