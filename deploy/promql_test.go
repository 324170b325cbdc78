package deploy_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// selector is a metric that an expression reads, with what its labels must be.
type selector struct {
	metric   string
	matchers []matcher
}

type matcher struct{ label, operator, value string }

// matches says whether a series with that value of the label is one of them.
func (m matcher) matches(value string) bool {
	equal := value == m.value
	if strings.HasSuffix(m.operator, "~") {
		equal = regexp.MustCompile("^(?:" + m.value + ")$").MatchString(value)
	}
	return equal != strings.HasPrefix(m.operator, "!")
}

var token = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[a-zA-Z_:][a-zA-Z0-9_:]*|[0-9][a-zA-Z0-9.]*|\[[^\]]*\]|[=!<>]?[=~]|\S`)

// read an expression of PromQL: which metrics it reads, and by which labels it groups and matches
// them. It knows as much of the language as the expressions here need; promtool checks their syntax.
func read(expr string) (selectors []selector, grouped []string, err error) {
	tokens := append(token.FindAllString(expr, -1), "", "")
	for i := 0; i < len(tokens)-2; i++ {
		word, next := tokens[i], tokens[i+1]
		switch {
		case !regexp.MustCompile(`^[a-zA-Z_:]`).MatchString(word):
		case slices.Contains([]string{"by", "without", "on", "ignoring", "group_left", "group_right"}, word):
			if next != "(" {
				return nil, nil, fmt.Errorf("%s without labels", word)
			}
			for i += 2; tokens[i] != ")"; i++ {
				if tokens[i] == "" {
					return nil, nil, fmt.Errorf("%s is not closed", word)
				}
				if tokens[i] != "," {
					grouped = append(grouped, tokens[i])
				}
			}
		case next == "(" || next == "by" || next == "without": // a function
		case slices.Contains([]string{"and", "or", "unless"}, word):
		default:
			s := selector{metric: word}
			if next == "{" {
				for i += 2; tokens[i] != "}"; i++ {
					if tokens[i] == "," {
						continue
					}
					if i+2 >= len(tokens) {
						return nil, nil, fmt.Errorf("%s{ is not closed", word)
					}
					value, err := strconv.Unquote(tokens[i+2])
					if err != nil {
						return nil, nil, fmt.Errorf("%s{%s: %w", word, tokens[i], err)
					}
					s.matchers = append(s.matchers, matcher{tokens[i], tokens[i+1], value})
					i += 2
				}
			}
			selectors = append(selectors, s)
		}
	}
	return selectors, grouped, nil
}

func TestReadsPromQL(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`up`: `[{up []}] []`,
		`sum by (job, le) (rate(a_total{x=~"b|c", y!="}"}[5m])) / on (job) group_left () max(b) > 0.5`: `[{a_total [{x =~ b|c} {y != }}]} {b []}] [job le job]`,
		`max(a) unless max_over_time(b{}[1h]) or time() - c`:                                           `[{a []} {b []} {c []}] []`,
		`label_replace(rows{table="x"}, "strategy", "$1", "table", "(.+)") * 60`:                       `[{rows [{table = x}]}] []`,
	} {
		selectors, grouped, err := read(expr)
		if got := fmt.Sprint(selectors, grouped); got != want || err != nil {
			t.Errorf("%s\ngot  %s, %v\nwant %s", expr, got, err, want)
		}
	}
	for _, expr := range []string{`sum by (job`, `sum by job`, `up{job="a"`, `up{job`, `up{job=a}`} {
		if _, _, err := read(expr); err == nil {
			t.Errorf("%s has no error", expr)
		}
	}
}
