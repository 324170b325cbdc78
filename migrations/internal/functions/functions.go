// Package functions makes the numbered migration that brings the functions and views of
// the folder migrations/functions into a database.
//
// A file of that folder holds the current body of one function or view, and is named
// after it. So the code that runs can be read in one place. The migrations, which must
// not change once they are published, say how a database got there.
package functions

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const head = `-- The functions and views, each as it stands in its file of the folder functions, in
-- an order in which each finds those that it uses. Generated: do not edit, change the
-- file in the folder and run "go generate ./migrations".
`

// object is a function or a view.
type object struct {
	text string // of its file
	kind string // "function" or "view"
	// shape is what "create or replace" cannot change: of a function the parameters and
	// the result, of a view everything, because a change may be to its columns.
	shape string
	uses  []string
	// binds says that Postgres looks up the objects that this one uses when it is
	// created, and then refuses to drop them. True of a view, and of a function whose
	// body is SQL and not a string.
	binds bool
}

var (
	created   = regexp.MustCompile(`(?m)^create or replace (function|view) pglimit\.(\w+)`)
	anyCreate = regexp.MustCompile(`(?mi)^\s*create\b`)
	comments  = regexp.MustCompile(`(?m)--.*$`)
	named     = regexp.MustCompile(`\bpglimit\.(\w+)(\s*\()?`)
	marker    = regexp.MustCompile(`(?m)^-- functions/(\w+)\.sql\n`)
)

// File returns the text of the migration. current holds the files of the folder, by name
// without ".sql". previous is the text of the migration of functions before this one,
// empty for the first: Up drops what it made and is not wanted any more, and Down brings
// back what it made.
func File(previous string, current map[string]string) (string, error) {
	to, err := parse(current)
	if err != nil {
		return "", err
	}
	from, err := parse(split(previous))
	if err != nil {
		return "", fmt.Errorf("in the migration before: %w", err)
	}
	toOrder, err := sorted(to)
	if err != nil {
		return "", err
	}
	fromOrder, err := sorted(from)
	if err != nil {
		return "", fmt.Errorf("in the migration before: %w", err)
	}

	var b strings.Builder
	b.WriteString(head + "\n-- +goose Up\n")
	replace(&b, from, fromOrder, to, toOrder)
	b.WriteString("-- +goose Down\n")
	replace(&b, to, toOrder, from, fromOrder)
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

// replace writes the SQL that turns the objects from into the objects to.
func replace(b *strings.Builder, from map[string]object, fromOrder []string, to map[string]object, toOrder []string) {
	drops := map[string]bool{}
	for _, name := range fromOrder {
		old, now := from[name], to[name]
		drops[name] = old.shape != now.shape || // or it is gone
			old.binds && slices.ContainsFunc(old.uses, func(used string) bool { return drops[used] })
	}
	for _, name := range slices.Backward(fromOrder) {
		if drops[name] {
			fmt.Fprintf(b, "drop %s pglimit.%s;\n", from[name].kind, name)
		}
	}
	b.WriteString("\n")
	for _, name := range toOrder {
		text := to[name].text
		if !to[name].binds || strings.Contains(text, "begin atomic") {
			// goose would end the statement at the first semicolon.
			text = "-- +goose StatementBegin\n" + text + "-- +goose StatementEnd\n"
		}
		fmt.Fprintf(b, "-- functions/%s.sql\n%s\n", name, text)
	}
}

// split takes a migration made by File, and returns the files that it was made of.
func split(migration string) map[string]string {
	_, up, _ := strings.Cut(migration, "-- +goose Up\n")
	up, _, _ = strings.Cut(up, "-- +goose Down\n")
	files := map[string]string{}
	at := marker.FindAllStringSubmatchIndex(up, -1)
	for i, m := range at {
		end := len(up)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		text := up[m[1]:end]
		text = strings.ReplaceAll(text, "-- +goose StatementBegin\n", "")
		text = strings.ReplaceAll(text, "-- +goose StatementEnd\n", "")
		files[up[m[2]:m[3]]] = strings.TrimRight(text, "\n") + "\n"
	}
	return files
}

// parse reads the files. A file that breaks the rules of the folder is an error.
func parse(files map[string]string) (map[string]object, error) {
	objects := map[string]object{}
	for name, text := range files {
		m := created.FindStringSubmatch(text)
		code := comments.ReplaceAllString(text, "")
		switch {
		case !strings.HasPrefix(text, "--"):
			return nil, fmt.Errorf("functions/%s.sql: it must begin with a comment that says what it does", name)
		case len(m) < 3 || m[2] != name || len(anyCreate.FindAllString(code, -1)) != 1:
			return nil, fmt.Errorf(`functions/%s.sql: it must create one thing: "create or replace function pglimit.%[1]s", or view`, name)
		case strings.Contains(text, "-- +goose") || marker.MatchString(text):
			return nil, fmt.Errorf("functions/%s.sql: it must have no line that begins with \"-- +goose\" or \"-- functions/\"", name)
		}
		o := object{text: strings.TrimRight(text, "\n") + "\n", kind: m[1], binds: !strings.Contains(code, "as $")}
		shape, _, found := strings.Cut(code, ";\n")
		if o.kind == "function" {
			shape, _, found = strings.Cut(code, "\nlanguage ")
		}
		if !found {
			return nil, fmt.Errorf("functions/%s.sql: a function needs a line that begins with \"language\" after what it returns, a view a semicolon at its end", name)
		}
		o.shape = strings.Join(strings.Fields(shape), " ")
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
	done := map[string]bool{}
	var visit func(name string, path []string) error
	visit = func(name string, path []string) error {
		if slices.Contains(path, name) {
			return fmt.Errorf("functions use each other in a circle: %s", strings.Join(append(path, name), ", "))
		}
		if done[name] {
			return nil
		}
		for _, used := range slices.Sorted(slices.Values(objects[name].uses)) {
			if err := visit(used, append(path, name)); err != nil {
				return err
			}
		}
		done[name] = true
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
