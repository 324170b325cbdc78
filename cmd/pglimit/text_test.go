package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/migrations"
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
	if got := milliseconds(1001 * time.Microsecond); got != 2 {
		t.Errorf("1.001ms is %d whole milliseconds, not 2", got)
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

func TestMigratingSaysWhatChanged(t *testing.T) {
	t.Parallel()
	list := func(applied ...bool) (out []migrations.Migration) {
		for i, a := range applied {
			out = append(out, migrations.Migration{Version: int64(i + 1), Name: string(rune('a' + i)), Applied: a})
		}
		return out
	}
	// The second one is optional, as exclusion_range is, and applied in the same transaction.
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	all, later := list(true, true, true), list(true, true, true)
	for i := range all {
		all[i].AppliedAt, all[i].Optional = at, i == 1
		later[i].AppliedAt, later[i].Optional = at, i == 1
	}
	later[2].AppliedAt = at.Add(time.Hour)
	for _, test := range []struct {
		want          string
		before, after []migrations.Migration
	}{
		{"applied 1 a\napplied 3 c\napplied 2 b\nthe schema pglimit is at version 3\n", list(false, false, false), all},
		{"undone 2 b\nundone 3 c\nundone 1 a\nno migration is applied\n", all, list(false, false, false)},
		{"undone 3 c\nundone 2 b\nundone 1 a\nno migration is applied\n", later, list(false, false, false)},
		{"applied 2 b\nthe schema pglimit is at version 2\n", list(true, false, false), list(true, true, false)},
		{"undone 2 b\nundone 1 a\nno migration is applied\n", list(true, true), list(false, false)},
		{"nothing to do\nthe schema pglimit is at version 2\n", list(true, true), list(true, true)},
		// Version 3 is of a newer release, which undid it meanwhile.
		{"undone 3 c\nthe schema pglimit is at version 2\n", list(true, true, true), list(true, true)},
	} {
		if got := changed(test.before, test.after).text(); got != test.want {
			t.Errorf("prints %q, not %q", got, test.want)
		}
	}
}

func TestVersionNamesBuildAndNewestMigration(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
	}
	files, err := filepath.Glob("../../migrations/sql/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d migrations, %v", len(files), err)
	}
	newest := strings.TrimSuffix(filepath.Base(files[len(files)-1]), ".sql")
	v, err := newVersionJSON(info)
	if err != nil || v.Version != "v1.2.3" || v.Commit != "abc" || !v.Modified || v.Migration != newest {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := newVersionJSON(nil); err != nil || v.Version != "unknown" || v.Commit != "" {
		t.Errorf("without build info: %+v, %v", v, err)
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
