package integration

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	fence     = regexp.MustCompile("(?ms) *```(\\w+)\n(.*?\n) *```$")
	statement = regexp.MustCompile(`"(select [^"]*pglimit\.[^"]*)"`)
	parameter = regexp.MustCompile(`%s|\?`)
)

// Every statement of docs/sql.md runs, whatever language it is written in.
func TestSQLOfTheDocsRuns(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/sql.md")
	must(t, err)
	pool := newMigrated(t)
	execute(t, pool, "create table messages (sender text, body text)")
	statements := map[string]int{}
	for _, block := range fence.FindAllStringSubmatch(string(page), -1) {
		language, code := block[1], block[2]
		if language == "sql" {
			execute(t, pool, code)
			statements[language] += strings.Count(code, ";\n")
			continue
		}
		for _, quoted := range statement.FindAllStringSubmatch(code, -1) {
			execute(t, pool, parameter.ReplaceAllString(quoted[1], "$$1"), "user:42")
			statements[language]++
		}
	}
	for _, language := range []string{"python", "ruby", "js", "java"} {
		if statements[language] != 1 {
			t.Errorf("%d statements of %s were found", statements[language], language)
		}
	}
	if statements["sql"] < 8 {
		t.Errorf("%d statements of SQL were found", statements["sql"])
	}
	execute(t, pool, "insert into messages select 'ann', 'hello' from generate_series(1, 10)")
	if _, err := pool.Exec(t.Context(), "insert into messages select 'ann', 'hello' from generate_series(1, 1000)"); sqlState(err) != "PT429" {
		t.Errorf("a thousand messages: %v", err)
	}
}
