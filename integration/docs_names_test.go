package integration

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
)

var (
	inline    = regexp.MustCompile("`[^`\n]+`")
	qualified = regexp.MustCompile(`\b(pglimit|pglimittest|strategies|migrations|limits|cleanup|promlimit|otellimit|httplimit|grpclimit)\.([A-Z]\w*)`)
	field     = regexp.MustCompile(`\bConfig\.([A-Z]\w*)`)
	method    = regexp.MustCompile(`\b[lL]imiter\.([A-Z]\w*)\((?:ctx|tx|conn|limit|decision|\))`)
)

// What the pages name in our packages, there is.
func TestNamesOfTheDocs(t *testing.T) {
	t.Parallel()
	exported := map[string]map[string]bool{}
	for name, dir := range map[string]string{
		"pglimit": "../pglimit", "pglimittest": "../pglimit/pglimittest", "strategies": "../strategies", "migrations": "../migrations",
		"cleanup": "../cleanup", "limits": "../limits", "promlimit": "../adapters/promlimit", "otellimit": "../adapters/otellimit", "httplimit": "../adapters/httplimit",
		"grpclimit": "../adapters/grpclimit",
	} {
		exported[name] = exportedBy(t, dir)
	}
	configs := []reflect.Type{reflect.TypeFor[pglimit.Config](), reflect.TypeFor[cleanup.Config](), reflect.TypeFor[httplimit.Config](), reflect.TypeFor[semaphore.Config]()}
	names, fields, methods := 0, 0, 0
	for _, name := range pages() {
		text, _ := readPage(t, name)
		for _, code := range inline.FindAllString(fence.ReplaceAllString(text, ""), -1) {
			for _, found := range qualified.FindAllStringSubmatch(code, -1) {
				names++
				if !exported[found[1]][found[2]] {
					t.Errorf("%s: there is no %s", name, found[0])
				}
			}
			for _, found := range field.FindAllStringSubmatch(code, -1) {
				fields++
				if !slices.ContainsFunc(configs, func(config reflect.Type) bool {
					_, is := config.FieldByName(found[1])
					_, does := config.MethodByName(found[1])
					return is || does
				}) {
					t.Errorf("%s: there is no %s", name, found[0])
				}
			}
			for _, found := range method.FindAllStringSubmatch(code, -1) {
				methods++
				if _, is := reflect.TypeFor[*pglimit.Limiter]().MethodByName(found[1]); !is {
					t.Errorf("%s: a Limiter has no method %s", name, found[1])
				}
			}
		}
	}
	if names < 100 || fields < 30 || methods < 30 {
		t.Errorf("%d names, %d fields and %d methods were found", names, fields, methods)
	}
}

func exportedBy(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	must(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		must(t, err)
		for _, declaration := range file.Decls {
			switch d := declaration.(type) {
			case *ast.FuncDecl:
				names[d.Name.Name] = names[d.Name.Name] || d.Recv == nil
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, ident := range s.Names {
							names[ident.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}

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
