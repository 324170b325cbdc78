// Package gate checks a report for conditions on which a pipeline is to fail:
//
//	p99(grant) > 5ms    over > 0    errors >= 1%    grants/s < 20k
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
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// metric of a run. NaN: it is not known, for the reason. If what it counts is not there at all, of returns nothing.
type metric struct {
	name string
	kind kind
	of   func(result.Run) float64
	why  string // it may not be known
}

// nothing is the latency of denials that there were none of: none was slow.
var nothing = math.Inf(-1)

// metrics, without those of latency.
var metrics = []metric{
	{"decisions/s", number, func(run result.Run) float64 { return run.DecisionsPerSecond }, ""},
	{"grants/s", number, func(run result.Run) float64 { return run.GrantsPerSecond }, ""},
	{"denials/s", number, func(run result.Run) float64 { return run.DenialsPerSecond }, ""},
	{"granted", number, func(run result.Run) float64 { return float64(run.Granted) }, ""},
	{"over", number, audited(func(a result.Audit) int64 { return a.OverTokens }), "the run was not audited"},
	{"not_due", number, audited(func(a result.Audit) int64 { return a.DenialsNotDue }), "the run was not audited"},
	{"errors", share, result.Run.FailedShare, ""},
	{"failed", number, func(run result.Run) float64 { return float64(run.Failed()) }, ""},
	{"deadlocks", number, func(run result.Run) float64 { return result.Known(run.Deadlocks) }, "the server could not be asked"},
	{"contended", share, decided(result.Run.ContendedShare), "nothing was decided"},
	{"trips", number, decided(result.Run.TripsPerDecision), "nothing was decided"},
	{"wal", number, result.Run.WALPerDecision, "the server could not be asked"},
}

// latencies in microseconds, each of all decisions, of (grant) or of (denial).
var latencies = []struct {
	name string
	of   func(result.Latency) float64
}{
	{"p50", func(l result.Latency) float64 { return l.P50 }},
	{"p90", func(l result.Latency) float64 { return l.P90 }},
	{"p99", func(l result.Latency) float64 { return l.P99 }},
	{"p99.9", func(l result.Latency) float64 { return l.P999 }},
	{"p99.99", func(l result.Latency) float64 { return l.P9999 }},
	{"max", func(l result.Latency) float64 { return l.Max }},
	{"mean", func(l result.Latency) float64 { return l.Mean }},
}

func audited(of func(result.Audit) int64) func(result.Run) float64 {
	return func(run result.Run) float64 {
		if run.Audit == nil {
			return math.NaN()
		}
		return float64(of(*run.Audit))
	}
}

func decided(of func(result.Run) float64) func(result.Run) float64 {
	return func(run result.Run) float64 {
		if run.Decisions == 0 {
			return math.NaN()
		}
		return of(run)
	}
}

func metricOf(name string) (metric, bool) {
	if i := slices.IndexFunc(metrics, func(m metric) bool { return m.name == name }); i >= 0 {
		return metrics[i], true
	}
	for _, l := range latencies {
		switch name {
		case l.name:
			return metric{name, duration, func(run result.Run) float64 { return run.Latency.Known(l.of(run.Latency)) }, "nothing was decided"}, true
		case l.name + "(grant)":
			return metric{name, duration, func(run result.Run) float64 { return run.GrantLatency.Known(l.of(run.GrantLatency)) }, "nothing was granted"}, true
		case l.name + "(denial)":
			return metric{name, duration, func(run result.Run) float64 {
				if run.Decisions > 0 && run.Denied == 0 {
					return nothing
				}
				return run.DenialLatency.Known(l.of(run.DenialLatency))
			}, "nothing was decided"}, true
		}
	}
	return metric{}, false
}

// kind of a value: how it is read and written.
type kind int

const (
	number   kind = iota // 0, 1.5, 20,000, 20k, 1.5M
	share                // 1%, 0.01
	duration             // 5ms, in microseconds
)

func (k kind) parse(text string) (f float64, err error) {
	switch k {
	case duration:
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("the value %q must be a duration, such as 5ms or 300us", text)
		}
		return float64(d) / 1000, nil
	case share:
		digits, percent := strings.CutSuffix(text, "%")
		if f, err = strconv.ParseFloat(strings.TrimSpace(digits), 64); percent {
			f /= 100
		}
		if err != nil || !(f >= 0 && f <= 1) {
			return 0, fmt.Errorf("the value %q must be a share, such as 1%% or 0.01", text)
		}
		return f, nil
	}
	times := 1.0
	digits := strings.NewReplacer(",", "", "_", "").Replace(text)
	for suffix, n := range map[string]float64{"k": 1e3, "M": 1e6} {
		if rest, has := strings.CutSuffix(digits, suffix); has {
			digits, times = rest, n
		}
	}
	if f, err = strconv.ParseFloat(digits, 64); err != nil || f < 0 || math.IsInf(f, 0) || math.IsNaN(f) {
		return 0, fmt.Errorf("the value %q must be a number, such as 0, 1.5, 20,000, 20k or 1.5M", text)
	}
	return f * times, nil
}

// write shows all digits: a figure that is just above its bound must not look equal to it.
func (k kind) write(f float64) string {
	switch {
	case k == duration:
		return time.Duration(f * 1000).String()
	case k == share:
		return strconv.FormatFloat(100*f, 'g', 6, 64) + " %"
	case f == math.Trunc(f):
		return format.Count(int64(f))
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// Condition that no run may meet. [Parse] makes one.
type Condition struct {
	metric metric
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
	value := strings.TrimLeft(text[at:], signs)
	c.op, c.wanted = strings.Replace(text[at:len(text)-len(value)], "==", "=", 1), strings.TrimSpace(value)
	if !slices.Contains(strings.Fields(operators), c.op) {
		return fail("there is no operator %q, only %s", c.op, operators)
	}
	name := strings.Join(strings.Fields(text[:at]), "")
	m, found := metricOf(name)
	if !found {
		var names []string
		for _, l := range latencies {
			names = append(names, l.name)
		}
		names = append(names, "(each also with (grant) or (denial)), and")
		for _, m := range metrics {
			names = append(names, m.name)
		}
		return fail("there is no metric %q, only %s", name, strings.Join(names, " "))
	}
	c.metric = m
	if c.value, err = m.kind.parse(c.wanted); err != nil {
		return fail("%v", err)
	}
	return c, nil
}

// Check returns a line for each run that meets the condition, in the order of the runs. So do a figure that is not
// known, and a report without any run: neither shows that all is well.
func (c Condition) Check(r result.Report) (met []string) {
	if len(r.Runs) == 0 {
		return []string{c.metric.name + " is not known: nothing was run"}
	}
	for _, run := range r.Runs {
		where := fmt.Sprintf("%s, %s", run.Strategy, run.Scenario)
		if slices.ContainsFunc(r.Runs, func(other result.Run) bool { return other.Round > 1 }) {
			where += fmt.Sprintf(", round %d", run.Round)
		}
		switch got := c.metric.of(run); {
		case math.IsNaN(got):
			met = append(met, fmt.Sprintf("%s: %s is not known: %s", where, c.metric.name, c.metric.why))
		case got != nothing && c.holds(got):
			met = append(met, fmt.Sprintf("%s: %s is %s, which is %s %s", where, c.metric.name, c.metric.kind.write(got), c.op, c.wanted))
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
