package main

import (
	"strings"
	"testing"
)

// A report is shown to others.
func TestCommandLineHasNoPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"pglimit bench", []string{"bench"}},
		{"pglimit bench --fail-if 'p99(grant)>5ms' --keys 5", []string{"bench", "--fail-if", "p99(grant)>5ms", "--keys", "5"}},
		{"pglimit bench --limit '1/1s burst 5'", []string{"bench", "--limit", "1/1s burst 5"}},
		{`pglimit bench --plan 'it'\''s.yaml'`, []string{"bench", "--plan", "it's.yaml"}},
		{"pglimit bench --database-url ... --keys 5", []string{"bench", "--database-url", "postgres://u:secret@h/d", "--keys", "5"}},
		{"pglimit --database-url=... bench", []string{"--database-url=host=h password=secret user=u", "bench"}},
	} {
		if got := (&app{args: c.args}).commandLine(); got != c.want {
			t.Errorf("%q is %s, want %s", c.args, got, c.want)
		}
	}
}

// Nor has what is said of an argument that a command does not take.
func TestStrayArgumentHasNoPassword(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"cleanup"}, {"migrate"}, {"migrate", "up"}, {"bench"}, {}} {
		for _, stray := range []string{"postgres://u:secret@h/d", "host=h password=secret", "u:secret@h/d", "secret@h/d"} {
			if code, _, stderr := call(t.Context(), append(command, stray)...); code == 0 || strings.Contains(stderr, "secret") {
				t.Errorf("%q %s: %d, %s", command, stray, code, stderr)
			}
		}
	}
}
