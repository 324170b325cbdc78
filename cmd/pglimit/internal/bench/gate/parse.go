package gate

import (
	"fmt"
	"slices"
	"strings"
)

// Parse reads a condition: a metric, an operator (< <= = >= > !=), a value. Spaces do not
// matter. The error names the text, the part that is wrong, and what is allowed.
func Parse(text string) (Condition, error) {
	fail := func(format string, args ...any) (Condition, error) {
		return Condition{}, fmt.Errorf("%q: %s", text, fmt.Sprintf(format, args...))
	}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return fail("there is no operator: it must be like \"p99(grant)<5ms\", with one of %s", operators)
	}
	end := at
	for end < len(text) && strings.ContainsRune("<>=!", rune(text[end])) {
		end++
	}
	c := Condition{name: squeeze(text[:at]), op: text[at:end], wanted: strings.TrimSpace(text[end:])}
	if c.op == "==" {
		c.op = "="
	}
	if !slices.Contains(strings.Fields(operators), c.op) {
		return fail("there is no operator %q, only %s", c.op, operators)
	}
	var found bool
	if c.metric, found = metricOf(c.name); !found {
		return fail("there is no metric %q, only %s", c.name, metricNames())
	}
	var err error
	if c.value, err = c.metric.kind.parse(c.wanted); err != nil {
		return fail("%v", err)
	}
	return c, nil
}

const operators = "< <= = >= > !="

// squeeze leaves no space: "p99 (grant)" is p99(grant).
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

func metricOf(name string) (metric, bool) {
	base, whose, ofSome := strings.Cut(name, "(")
	if ofSome {
		var closed bool
		if whose, closed = strings.CutSuffix(whose, ")"); !closed || whose != ofGrants && whose != ofDenials {
			return metric{}, false
		}
	}
	for _, l := range latencies {
		if l.name == base {
			return latencyOf(whose, l.of), true
		}
	}
	for _, o := range others {
		if o.name == name {
			return o.metric, true
		}
	}
	return metric{}, false
}

func metricNames() string {
	var names []string
	for _, l := range latencies {
		names = append(names, l.name)
	}
	text := strings.Join(names, " ") + " (each also with (grant) or (denial)), and "
	names = nil
	for _, o := range others {
		names = append(names, o.name)
	}
	return text + strings.Join(names, " ")
}
