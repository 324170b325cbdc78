package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench"
)

// newBenchProgress returns a function that draws a bar for each run, or nil if w is no
// terminal.
func newBenchProgress(w io.Writer) func(bench.Progress) {
	if !isTerminal(w) {
		return nil
	}
	return drawProgress(w)
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func drawProgress(w io.Writer) func(bench.Progress) {
	var bar *progressbar.ProgressBar
	return func(p bench.Progress) {
		if bar == nil {
			bar = progressbar.NewOptions64(int64(p.Last),
				progressbar.OptionSetWriter(w),
				progressbar.OptionSetWidth(30),
				progressbar.OptionSetElapsedTime(false),
				progressbar.OptionSetPredictTime(false),
				progressbar.OptionClearOnFinish(),
			)
		}
		rate := float64(p.Answered) / max(p.Elapsed, time.Millisecond).Seconds()
		what := fmt.Sprintf("%d/%d %s, %s", p.Number, p.Of, p.Scenario, p.Strategy)
		if p.Answered > 0 { // callers say so once an interval, and without a series at the end
			what += fmt.Sprintf(", %.0f/s", rate)
		}
		bar.Describe(what)
		if p.Done {
			bar.Finish() //nolint:errcheck // a bar that cannot be drawn is no reason to stop
			bar = nil
			return
		}
		bar.Set64(int64(min(p.Elapsed, p.Last-1))) //nolint:errcheck // as above
	}
}
