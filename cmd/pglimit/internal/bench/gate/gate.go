// Package gate checks a report for conditions on which a pipeline is to fail:
//
//	p99(grant) > 5ms    over > 0    errors >= 1%    grants/s < 20000
//
// One run that meets one of them is enough: a median would hide the round in which it happened.
package gate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/format"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/metric"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// value reads what a metric of that unit is compared with.
func value(unit metric.Unit, text string) (f float64, err error) {
	switch unit {
	case metric.Time:
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("the value %q must be a duration, such as 5ms or 300us", text)
		}
		return float64(d) / 1000, nil
	case metric.Share:
		digits, percent := strings.CutSuffix(text, "%")
		if f, err = strconv.ParseFloat(strings.TrimSpace(digits), 64); percent {
			f /= 100
		}
		if err != nil || !(f >= 0 && f <= 1) {
			return 0, fmt.Errorf("the value %q must be a share, such as 1%% or 0.01", text)
		}
		return f, nil
	}
	if f, err = strconv.ParseFloat(text, 64); err != nil || !(f >= 0) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("the value %q must be a number, such as 0, 1.5 or 20000", text)
	}
	return f, nil
}

// allDigits of a figure: one that is just above its bound must not look equal to it.
func allDigits(unit metric.Unit, f float64) string {
	switch {
	case unit == metric.Time:
		return time.Duration(f * 1000).String()
	case unit == metric.Share:
		return strconv.FormatFloat(100*f, 'g', 6, 64) + " %"
	case f == math.Trunc(f):
		return format.Count(int64(f))
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// Condition that no run may meet. [Parse] makes one.
type Condition struct {
	metric metric.Metric
	op     string
	value  float64
	wanted string // the value as written
}

const operators = "< <= = >= > !="

// Parse reads a condition: a metric, an operator, a value. Spaces do not matter. The error names the text, the part
// that is wrong, and what is allowed.
func Parse(text string) (c Condition, err error) {
	fail := func(format string, args ...any) (Condition, error) {
		return Condition{}, fmt.Errorf("%q: %s", text, fmt.Sprintf(format, args...))
	}
	const signs = "<>=!"
	at := strings.IndexAny(text, signs)
	if at < 0 {
		return fail("there is no operator: it must be like \"p99(grant)>5ms\", with one of %s", operators)
	}
	wanted := strings.TrimLeft(text[at:], signs)
	c.op, c.wanted = strings.Replace(text[at:len(text)-len(wanted)], "==", "=", 1), strings.TrimSpace(wanted)
	if !slices.Contains(strings.Fields(operators), c.op) {
		return fail("there is no operator %q, only %s", c.op, operators)
	}
	name := strings.Join(strings.Fields(text[:at]), "")
	found := metric.Named(name)
	if len(found) == 0 {
		var names []string
		for _, m := range metric.All {
			names = append(names, m.Name)
		}
		return fail("there is no metric %q, only %s", name, strings.Join(names, " "))
	}
	c.metric = found[0]
	if c.value, err = value(c.metric.Unit, c.wanted); err != nil {
		return fail("%v", err)
	}
	return c, nil
}

// Check returns a line for each run that meets the condition, in the order of the runs. So do a figure that is not
// known, and a report without any run: neither shows that all is well.
func (c Condition) Check(r result.Report) (met []string) {
	if len(r.Runs) == 0 {
		return []string{c.metric.Name + " is not known: nothing was run"}
	}
	for _, run := range r.Runs {
		where := fmt.Sprintf("%s, %s", run.Strategy, run.Scenario)
		if slices.ContainsFunc(r.Runs, func(other result.Run) bool { return other.Round > 1 }) {
			where += fmt.Sprintf(", round %d", run.Round)
		}
		switch got := c.metric.Of(run); {
		case math.IsNaN(got):
			met = append(met, fmt.Sprintf("%s: %s is not known", where, c.metric.Name))
		case got != metric.None && c.holds(got):
			met = append(met, fmt.Sprintf("%s: %s is %s, which is %s %s", where, c.metric.Name, allDigits(c.metric.Unit, got), c.op, c.wanted))
		}
	}
	return met
}

func (c Condition) holds(got float64) bool {
	switch c.op {
	case "<":
		return got < c.value
	case "<=":
		return got <= c.value
	case ">":
		return got > c.value
	case ">=":
		return got >= c.value
	case "!=":
		return got != c.value
	}
	return got == c.value
}
