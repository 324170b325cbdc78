// Package functions makes the migration sql/00003_functions.sql of the folder functions.
//
// A file of that folder holds one function or view, and is named after it. So the code that
// runs can be read in one place. A file with the function of a trigger also creates the
// triggers that call it.
package functions

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Path is the migration's place in the folder migrations.
const Path = "sql/00003_functions.sql"

const head = `-- The functions, and the views and triggers that need them: each as it stands in its file of
-- the folder functions, in an order in which each finds those that it uses. Generated: do not
-- edit, change the file in the folder and run "go generate ./migrations".
`

// object is a function, with its triggers, or a view.
type object struct {
	text string   // of its file
	drop string   // the statements that drop it
	uses []string // the objects that must be there before it
	body bool     // has semicolons, at which goose would end the statement
}

var (
	created   = regexp.MustCompile(`(?m)^create or replace (function|view) pglimit\.(\w+)`)
	triggers  = regexp.MustCompile(`(?m)^create or replace trigger (\w+)[^;]* on (pglimit\.\w+)[^;]*;`)
	anyCreate = regexp.MustCompile(`(?mi)^\s*create\b`)
	comments  = regexp.MustCompile(`(?m)--.*$`)
	named     = regexp.MustCompile(`\bpglimit\.(\w+)(\s*\()?`)
)

// Generate returns the text of the migration, made of the folder functions in the folder migrations.
func Generate(migrations string) (string, error) {
	files, err := read(filepath.Join(migrations, "functions"))
	if err != nil {
		return "", err
	}
	return file(files)
}

// read returns the files of a folder, by name without ".sql".
func read(folder string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	files := map[string]string{}
	for _, path := range paths {
		text, failed := os.ReadFile(path)
		err = errors.Join(err, failed)
		files[strings.TrimSuffix(filepath.Base(path), ".sql")] = string(text)
	}
	return files, err
}

// file returns the text of the migration. files holds the folder, by name without ".sql".
func file(files map[string]string) (string, error) {
	objects, err := parse(files)
	if err != nil {
		return "", err
	}
	order, err := sorted(objects)
	if err != nil {
		return "", err
	}
	var up, down strings.Builder
	for _, name := range order {
		text := objects[name].text
		if objects[name].body {
			text = "-- +goose StatementBegin\n" + text + "-- +goose StatementEnd\n"
		}
		up.WriteString("\n" + text)
	}
	for _, name := range slices.Backward(order) {
		down.WriteString(objects[name].drop)
	}
	return head + "\n-- +goose Up\n" + up.String() + "\n-- +goose Down\n" + down.String(), nil
}

// parse reads the files. A file that breaks the rules of the folder is an error.
func parse(files map[string]string) (map[string]object, error) {
	objects := map[string]object{}
	for name, text := range files {
		m := created.FindStringSubmatch(text)
		code := comments.ReplaceAllString(text, "")
		calls := triggers.FindAllStringSubmatch(code, -1)
		switch {
		case !strings.HasPrefix(text, "--"):
			return nil, fmt.Errorf("functions/%s.sql: it must begin with a comment that says what it does", name)
		case len(m) < 3 || m[2] != name || len(anyCreate.FindAllString(code, -1)) != 1+len(calls):
			return nil, fmt.Errorf("functions/%s.sql: it must create one thing, besides triggers: "+
				`"create or replace function pglimit.%[1]s", or view`, name)
		case strings.Contains(text, "-- +goose"):
			return nil, fmt.Errorf("functions/%s.sql: it must have no line that begins with \"-- +goose\"", name)
		}
		o := object{
			text: strings.TrimRight(text, "\n") + "\n", drop: fmt.Sprintf("drop %s pglimit.%s;\n", m[1], name),
			body: strings.Contains(code, "as $") || strings.Contains(code, "begin atomic"),
		}
		for _, t := range slices.Backward(calls) {
			o.drop = fmt.Sprintf("drop trigger %s on %s;\n", t[1], t[2]) + o.drop
		}
		for _, used := range named.FindAllStringSubmatch(code, -1) {
			// A table may have a function's name: only before a parenthesis is it the function.
			other, isFile := files[used[1]]
			if isFile && used[1] != name && (used[2] != "" || strings.Contains(other, "create or replace view")) {
				o.uses = append(o.uses, used[1])
			}
		}
		objects[name] = o
	}
	return objects, nil
}

// sorted returns the names, each after those of the objects that it uses, otherwise by
// the alphabet.
func sorted(objects map[string]object) ([]string, error) {
	var order []string
	var visit func(name string, path []string) error
	visit = func(name string, path []string) error {
		if slices.Contains(path, name) {
			return fmt.Errorf("functions use each other in a circle: %s", strings.Join(append(path, name), ", "))
		}
		if slices.Contains(order, name) {
			return nil
		}
		for _, used := range slices.Sorted(slices.Values(objects[name].uses)) {
			if err := visit(used, append(path, name)); err != nil {
				return err
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if err := visit(name, nil); err != nil {
			return nil, err
		}
	}
	return order, nil
}
