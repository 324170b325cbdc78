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
		{"pglimit bench --database-url postgres://u:xxxxx@h/d", []string{"bench", "--database-url", "postgres://u:secret@h/d"}},
		{"pglimit bench --database-url=postgres://u:xxxxx@h/d", []string{"bench", "--database-url=postgres://u:secret@h/d"}},
		{"pglimit '--database-url=postgres://h/d?password=xxxxx&sslmode=disable'", []string{"--database-url=postgres://h/d?sslmode=disable&password=secret"}},
		{"pglimit --database-url 'host=h password=xxxxx user=u'", []string{"--database-url", "host=h password=secret user=u"}},
		{"pglimit --database-url 'host=h password=xxxxx user=u'", []string{"--database-url", `host=h password = 'se\'cret x' user=u`}},
		{"pglimit --database-url 'host=h password=xxxxx user=u'", []string{"--database-url", `host=h password=se\ cret user=u`}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://u:sec%ret@h/d"}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://h/d?password=sec;ret"}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://h/d?password=sec#ret"}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://u:12#secret@h/d"}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://u:12?secret@h/d"}},
		{"pglimit --database-url postgres://...", []string{"--database-url", "postgres://u:12/secret@h/d"}},
		{"pglimit --database-url POSTGRES://...", []string{"--database-url", "POSTGRES://u:sec%ret@h/d"}},
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
