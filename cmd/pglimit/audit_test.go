package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lines string
		code  int
		want  string
	}{
		"kept":      {`{"key":"k","at":1,"granted":1,"limit":"1/1m"}`, 0, "0     0      0"},
		"over":      {`{"key":"k","at":1,"granted":3,"tokens":3,"limit":"1/1m","limiter":"api"}`, 1, "api: over: 2 tokens too many"},
		"undue":     {`{"key":"k","at":1,"granted":0,"limit":"1/1m"}`, 1, "undue: 1 token denied"},
		"empty":     {"\n", 2, "has no decisions"},
		"malformed": {"{}", 2, "line 1: key, limit and at are required"},
	} {
		file := filepath.Join(t.TempDir(), "decisions.jsonl")
		if err := os.WriteFile(file, []byte(test.lines+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if code := run(t.Context(), []string{"audit", file}, &out, &out); code != test.code || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: exit %d: %s", name, code, out.String())
		}
	}
}
