// Package yamlfile explains errors of a YAML file in the file's own terms.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value that a file may have.
type Value struct {
	Type   string // as the decoder names it: serve.settings
	Is     string // in words: the settings of a limiter
	Fields string // that it has, if there are few enough to name
}

// plain values, which every file has.
var plain = []Value{
	{Type: "time.Duration", Is: "a duration such as 500ms or 1m30s"},
	{Type: "int64", Is: "a whole number"}, {Type: "int", Is: "a whole number"},
	{Type: "float64", Is: "a number"}, {Type: "bool", Is: "true or false"}, {Type: "string", Is: "a text"},
}

const noTabs = "indent with spaces, not with a tab"

// Explain explains the decoder's error about text, with the line. values describe what does not fit its type.
func Explain(text []byte, err error, values ...Value) error {
	var types *yaml.TypeError
	if !errors.As(err, &types) {
		problem := problemOf(err)
		line, n := lineOf(text, problem)
		if tab.Match(line) {
			problem = noTabs
		}
		return fmt.Errorf("line %d: %s", n, problem)
	}
	var all []string
	for _, e := range types.Errors {
		all = append(all, explainType(e, append(values, plain...)))
	}
	return errors.New(strings.Join(all, "; "))
}

var (
	place     = regexp.MustCompile(`^(yaml: )?(line \d+: )?`)
	wrongType = regexp.MustCompile("(?s)cannot unmarshal !!(\\S+)( `.*`)? into (.+)$")
	tab       = regexp.MustCompile(`^ *\t`)
	noField   = regexp.MustCompile(`field (\S+) not found in type (\S+)$`)
)

// problemOf returns the text of a parser's error, without its line, which is that where the parser began to read the
// faulty part, or the one before.
func problemOf(err error) string { return place.ReplaceAllString(err.Error(), "") }

// lineOf returns the line of the problem: the last line of the shortest beginning of the text that has it.
func lineOf(text []byte, problem string) (line []byte, n int) {
	lines := bytes.SplitAfter(bytes.TrimRight(text, "\n"), []byte("\n"))
	n = 1 + min(len(lines)-1, sort.Search(len(lines), func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(bytes.Join(lines[:i+1], nil)))
		for {
			err := decoder.Decode(new(any))
			var types *yaml.TypeError
			switch {
			case err == nil, errors.As(err, &types):
			case errors.Is(err, io.EOF):
				return false
			default:
				return problemOf(err) == problem
			}
		}
	}))
	return lines[n-1], n
}

func explainType(text string, values []Value) string {
	text = noField.ReplaceAllStringFunc(text, func(match string) string {
		parts := noField.FindStringSubmatch(match)
		v := valueOf(parts[2], values)
		if v.Fields == "" {
			return fmt.Sprintf("there is no field %s in %s", parts[1], v.Is)
		}
		return fmt.Sprintf("there is no field %s here, only %s", parts[1], v.Fields)
	})
	return wrongType.ReplaceAllStringFunc(text, func(match string) string {
		parts := wrongType.FindStringSubmatch(match)
		what := strings.TrimSpace(parts[2])
		if what == "" {
			what = map[string]string{"seq": "a list", "map": "a mapping"}[parts[1]]
		}
		return fmt.Sprintf("%s is not %s", what, valueOf(parts[3], values).Is)
	})
}

func valueOf(name string, values []Value) Value {
	for _, v := range values {
		if v.Type == name {
			return v
		}
	}
	return Value{Is: name}
}
