package main

import (
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

func texts(all []fault) (lines []string) {
	for _, f := range all {
		lines = append(lines, string(f.old[:f.from])+f.text+string(f.old[f.to:]))
	}
	return lines
}

func TestGoFaultsAreCode(t *testing.T) {
	const source = "package p\n\nfunc f(a, b int) bool { g.h = min(a, b); k(); return a < b && !c }\n"
	all, err := goFaults("f.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Errorf("%d faults, want 6 (field, min, call, <, &&, !): %v", len(all), all)
	}
	for _, text := range texts(all) {
		if _, err := parser.ParseFile(token.NewFileSet(), "f.go", text, 0); err != nil || text == source {
			t.Errorf("not code, or no fault: %v\n%s", err, text)
		}
	}
}

func TestSQLFaultsLeaveCommentsAndTexts(t *testing.T) {
	const source = "create or replace function pglimit.f() -- a < b\nas $$ select ' < ' where a < b and c is not null $$;\n"
	var got []string
	for _, f := range sqlFaults("00003.sql", []byte(source)) {
		got = append(got, f.String())
	}
	want := []string{"« < → <= »", "« and → or »", "«is not null → is null»"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], "migrations/functions/f.sql: ") || !strings.Contains(got[i], want[i]) {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}
