package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/pglimit"
)

func TestDurationsAreShortAndRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                                "0s",
		time.Microsecond:                 "1ms",
		999*time.Millisecond + 1:         "1s",
		1234 * time.Millisecond:          "1.3s",
		12 * time.Second:                 "12s",
		8*time.Minute + 2100*1000*1000:   "8m3s",
		10 * time.Minute:                 "10m",
		2 * time.Hour:                    "2h",
		90 * time.Minute:                 "1h30m",
		time.Hour + 30*time.Second:       "1h0m30s",
		59*time.Second + 999*1000*1000:   "1m",
		365 * 24 * time.Hour:             "8760h",
		20*time.Minute + time.Nanosecond: "20m1s",
	} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v is %q, not %q", d, got, want)
		}
	}
}

func TestErrorsAreOneLineWithoutOurNames(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"plain":                                errors.New("plain"),
		"the database is not migrated: run it": fmt.Errorf("%w: run it", pglimit.ErrNotMigrated),
		"one; two":                             errors.Join(errors.New("cleanup: one"), errors.New("pglimit: two")),
		"several: a; b":                        errors.New("migrations: several:\n\ta\n\tb\n"),
		"it failed: inner":                     errors.New("cleanup: it failed: pglimit: inner"),
	} {
		if got := oneLine(err); got != want {
			t.Errorf("%q becomes %q, not %q", err, got, want)
		}
	}
}

// The names of strategies are one word.
func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		var help strings.Builder
		cmd.SetOut(&help)
		if err := cmd.Help(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(help.String()) {
			if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 && !strings.Contains(line, "token_bucket,upsert") {
				t.Errorf("%s: %d columns: %s", cmd.CommandPath(), len(line), line)
			}
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" { // its words are cobra's
				look(sub)
			}
		}
	}
	look(newRootCommand(&app{}))
}
