package functions

import (
	"maps"
	"regexp"
	"strings"
	"testing"
)

// Made-up functions: c uses b, b and the view use a; loose has a string for a body.
func someFunctions() map[string]string {
	return map[string]string{
		"a":     "-- One.\ncreate or replace function pglimit.a() returns bigint\nlanguage sql\nreturn 1;\n",
		"b":     "-- Two.\ncreate or replace function pglimit.b(n bigint) returns bigint\nlanguage sql\nreturn n + pglimit.a();\n",
		"c":     "-- Uses b(), and not what it calls loose().\ncreate or replace function pglimit.c() returns bigint\nlanguage sql\nreturn pglimit.b(1);\n",
		"aa":    "-- A view.\ncreate or replace view pglimit.aa as\nselect pglimit.a() as a;\ncomment on view pglimit.aa is 'so; and so';\n",
		"loose": "-- Uses b, and the view.\ncreate or replace function pglimit.loose() returns void\nlanguage plpgsql\nas $$\nbegin\n\tperform pglimit.b(1) from pglimit.aa;\nend\n$$;\n",
	}
}

func file(t *testing.T, previous string, current map[string]string) string {
	t.Helper()
	text, err := File(previous, current)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var statement = regexp.MustCompile(`(?m)^(drop|create or replace) (?:function|view) pglimit\.(\w+)`)

// steps of Up and Down: "+a" creates a, "-a" drops it.
func steps(text string) (up, down string) {
	u, d, _ := strings.Cut(text, "-- +goose Down\n")
	list := func(text string) string {
		var out []string
		for _, m := range statement.FindAllStringSubmatch(text, -1) {
			out = append(out, map[string]string{"drop": "-", "create or replace": "+"}[m[1]]+m[2])
		}
		return strings.Join(out, " ")
	}
	return list(u), list(d)
}

func TestAMigrationDropsAndCreatesInOrder(t *testing.T) {
	t.Parallel()
	first := file(t, "", someFunctions())
	const all = "+a +aa +b +c +loose"
	for name, test := range map[string]struct {
		previous string
		change   func(map[string]string)
		up, down string
	}{
		"the first": {"", nil, all, "-loose -c -b -aa -a"},
		"unchanged": {first, nil, all, all},
		"another body": {first, func(f map[string]string) {
			f["a"] = strings.Replace(f["a"], "return 1", "return 2", 1)
		}, all, all},
		"another comment": {first, func(f map[string]string) { f["aa"] = "-- Still" + f["aa"] }, all, all},
		"one more": {first, func(f map[string]string) {
			f["d"] = strings.ReplaceAll(f["c"], ".c(", ".d(")
		}, "+a +aa +b +c +d +loose", "-d " + all},
		// What is bound to it is dropped with it; loose is not.
		"another parameter": {first, func(f map[string]string) {
			f["b"] = strings.Replace(f["b"], "n bigint", "n int", 1)
		}, "-c -b " + all, "-c -b " + all},
		"another result": {first, func(f map[string]string) {
			f["a"] = strings.Replace(f["a"], "returns bigint", "returns int", 1)
		}, "-c -b -aa -a " + all, "-c -b -aa -a " + all},
		"a view with other columns": {first, func(f map[string]string) {
			f["aa"] = strings.Replace(f["aa"], "as a;", "as b;", 1)
		}, "-aa " + all, "-aa " + all},
		"one less": {first, func(f map[string]string) { delete(f, "c") }, "-c +a +aa +b +loose", all},
		"a view that becomes a function": {first, func(f map[string]string) {
			f["aa"] = strings.ReplaceAll(f["a"], ".a(", ".aa(")
		}, "-aa " + all, "-aa " + all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			current := someFunctions()
			if test.change != nil {
				test.change(current)
			}
			text := file(t, test.previous, current)
			if up, down := steps(text); up != test.up || down != test.down {
				t.Errorf("up   %s\nwant %s\ndown %s\nwant %s\nin:\n%s", up, test.up, down, test.down, text)
			}
		})
	}
}

// The next release finds in the file what this one was made of.
func TestAMigrationIsReadBackAsTheFilesItWasMadeOf(t *testing.T) {
	t.Parallel()
	first := file(t, "", someFunctions())
	if got := split(first); !maps.Equal(got, someFunctions()) {
		t.Errorf("read back from the first: %q", got)
	}
	second := file(t, first, map[string]string{"a": someFunctions()["a"]})
	if got := split(second); len(got) != 1 || got["a"] != someFunctions()["a"] {
		t.Errorf("read back from the second: %q", got)
	}
	_, down, _ := strings.Cut(second, "-- +goose Down\n")
	for name, text := range someFunctions() {
		code := strings.TrimSuffix(text, "\n")
		if !strings.Contains(down, code) {
			t.Errorf("down does not bring back %s:\n%s", name, down)
		}
	}
}

// goose splits at semicolons, unless it is told not to.
func TestBodiesWithSemicolonsAreOneStatement(t *testing.T) {
	t.Parallel()
	text := file(t, "", someFunctions())
	if got := strings.Count(text, "-- +goose StatementBegin\n"); got != 1 || !strings.Contains(text, "$$;\n-- +goose StatementEnd\n") {
		t.Errorf("%d statements are marked, not that of loose:\n%s", got, text)
	}
}

func TestFilesThatBreakTheRulesAreRefused(t *testing.T) {
	t.Parallel()
	ok := strings.Replace(someFunctions()["a"], "pglimit.a(", "pglimit.wrong(", 1)
	for want, text := range map[string]string{
		"begin with a comment":              strings.TrimPrefix(ok, "-- One.\n"),
		"create one thing":                  ok + "create index on pglimit.x (y);\n",
		"or replace function pglimit.wrong": strings.Replace(ok, "or replace ", "", 1),
		`pglimit.wrong", or view`:           strings.Replace(ok, "pglimit.wrong(", "pglimit.right(", 1),
		`"-- +goose"`:                       "-- +goose StatementBegin\n" + ok,
		`"-- functions/"`:                   ok + "-- functions/b.sql\n",
		`begins with "language"`:            strings.Replace(ok, "\nlanguage", " language", 1),
	} {
		_, err := File("", map[string]string{"wrong": text})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "functions/wrong.sql") {
			t.Errorf("want an error that says %s: %v", want, err)
		}
	}
	circle := someFunctions()
	circle["a"] = strings.Replace(circle["a"], "return 1", "return pglimit.c()", 1)
	if _, err := File("", circle); err == nil || !strings.Contains(err.Error(), "in a circle: a, c, b, a") {
		t.Errorf("a circle: %v", err)
	}
}
