package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A page that no test knows, or that the index does not name, would rot unseen. A long one is not read.
func TestPagesOfTheDocs(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../docs/README.md")
	must(t, err)
	files, err := filepath.Glob("../docs/*.md")
	must(t, err)
	known := pages()
	for _, file := range append(files, "../README.md") {
		name, err := filepath.Rel("../docs", file)
		must(t, err)
		if !slices.Contains(known, name) {
			t.Errorf("no test knows %s: see handbook and elsewhere", name)
		}
		if name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md has no link to %s", name)
		}
		text, err := os.ReadFile(file)
		must(t, err)
		longest := 250
		if name == "../README.md" {
			longest = 150
		}
		if lines := strings.Count(string(text), "\n"); lines > longest {
			t.Errorf("%s has %d lines, more than %d", name, lines, longest)
		}
	}
	if len(files)+1 != len(known) {
		t.Errorf("%d pages, of which the tests know %d", len(files)+1, len(known))
	}
}
