package functions

import (
	"regexp"
	"strings"
	"testing"
)

// Made-up functions: c uses b, b and the view use a; loose has a string for a body; acts has triggers.
func someFunctions() map[string]string {
	return map[string]string{
		"a":     "-- One.\ncreate or replace function pglimit.a() returns bigint\nlanguage sql\nreturn 1;\n",
		"b":     "-- Two.\ncreate or replace function pglimit.b(n bigint) returns bigint\nlanguage sql\nreturn n + pglimit.a();\n",
		"c":     "-- Uses b(), and not what it calls loose().\ncreate or replace function pglimit.c() returns bigint\nlanguage sql\nreturn pglimit.b(1);\n",
		"aa":    "-- A view.\ncreate or replace view pglimit.aa as\nselect pglimit.a() as a;\ncomment on view pglimit.aa is 'so; and so';\n",
		"loose": "-- Uses b, and the view.\ncreate or replace function pglimit.loose() returns void\nlanguage plpgsql\nas $$\nbegin\n\tperform pglimit.b(1) from pglimit.aa;\nend\n$$;\n",
		"acts": "-- Of two triggers.\ncreate or replace function pglimit.acts() returns trigger\nlanguage plpgsql\nas $$\nbegin\n\treturn null;\nend\n$$;\n" +
			"create or replace trigger x before update of c on pglimit.a\n    for each row execute function pglimit.acts();\n" +
			"create or replace trigger y after insert on pglimit.t execute function pglimit.acts();\n",
	}
}

var statement = regexp.MustCompile(`(?m)^(drop|create or replace) (?:function|view|trigger) (?:pglimit\.)?(\w+)`)

// steps of a part: "+a" creates a, "-a" drops it.
func steps(text string) string {
	var out []string
	for _, m := range statement.FindAllStringSubmatch(text, -1) {
		out = append(out, map[string]string{"drop": "-", "create or replace": "+"}[m[1]]+m[2])
	}
	return strings.Join(out, " ")
}

func TestEachFindsWhatItUsesAndGoesBeforeThat(t *testing.T) {
	t.Parallel()
	text, err := file(someFunctions())
	if err != nil {
		t.Fatal(err)
	}
	up, down, _ := strings.Cut(text, "-- +goose Down\n")
	if got := steps(up); got != "+a +aa +acts +x +y +b +c +loose" {
		t.Errorf("up %s", got)
	}
	if got := steps(down); got != "-loose -c -b -x -y -acts -aa -a" || !strings.Contains(down, "drop trigger x on pglimit.a;\n") {
		t.Errorf("down %s", down)
	}
	for name, text := range someFunctions() {
		if !strings.Contains(up, "\n"+text) {
			t.Errorf("%s is not there as it is in its file:\n%s", name, up)
		}
	}
	// goose splits at semicolons, unless it is told not to.
	if got := strings.Count(up, "-- +goose StatementBegin\n"); got != 2 || !strings.Contains(up, "$$;\n-- +goose StatementEnd\n") {
		t.Errorf("%d statements are marked, not those of loose and acts:\n%s", got, up)
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
	} {
		_, err := file(map[string]string{"wrong": text})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "functions/wrong.sql") {
			t.Errorf("want an error that says %s: %v", want, err)
		}
	}
	circle := someFunctions()
	circle["a"] = strings.Replace(circle["a"], "return 1", "return pglimit.c()", 1)
	if _, err := file(circle); err == nil || !strings.Contains(err.Error(), "in a circle: a, c, b, a") {
		t.Errorf("a circle: %v", err)
	}
}
