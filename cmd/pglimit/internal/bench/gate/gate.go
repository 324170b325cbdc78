// Package gate checks a report against conditions, so that a pipeline can fail on them:
//
//	p99(grant) < 5ms    over = 0    errors <= 1%    grants/s >= 20k
//
// Every run of the report must keep every condition: a median would hide the round that broke it.
//
//	gate.go    a condition, and the runs that break it
//	metric.go  the metrics
//	parse.go   parsing conditions
//	value.go   durations, shares and numbers
package gate

import (
	"fmt"
	"math"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Condition that every run must keep. [Parse] makes one.
type Condition struct {
	metric metric
	name   string // as written: p99(grant)
	op     string
	value  float64
	wanted string // the value as written
}

// String is the condition as it was meant: p99(grant) < 5ms.
func (c Condition) String() string { return c.name + " " + c.op + " " + c.wanted }

// Violation of a condition by one run.
type Violation struct {
	Strategy string
	Scenario string // its name
	Round    int    // 0: there is one only
	What     string // p99(grant) is 7.21 ms, wanted < 5ms
}

func (v Violation) String() string {
	where := v.Strategy + ", " + v.Scenario
	if v.Round > 0 {
		where += fmt.Sprintf(", round %d", v.Round)
	}
	return where + ": " + v.What
}

// Check returns a violation for each run that does not keep the condition, in the order
// of the runs. A figure that is not known violates it, and so does a report without any
// run: neither shows that it was kept.
func (c Condition) Check(r result.Report) []Violation {
	if len(r.Runs) == 0 {
		return []Violation{{"no strategy", "no scenario", 0, fmt.Sprintf("nothing was run, wanted %s", c)}}
	}
	rounds := 0
	for _, run := range r.Runs {
		rounds = max(rounds, run.Round)
	}
	var broken []Violation
	for _, run := range r.Runs {
		what := c.broken(run)
		if what == "" {
			continue
		}
		v := Violation{run.Strategy, run.Scenario, run.Round, what}
		if rounds < 2 {
			v.Round = 0
		}
		broken = append(broken, v)
	}
	return broken
}

// broken says how the run breaks the condition. Empty: it keeps it.
func (c Condition) broken(run result.Run) string {
	got, why := c.metric.of(run)
	switch {
	case why == nothingDenied:
		return "" // no denial was slow
	case why != "":
		return fmt.Sprintf("%s is not known: %s; wanted %s %s", c.name, why, c.op, c.wanted)
	case math.IsNaN(got):
		return fmt.Sprintf("%s is not known; wanted %s %s", c.name, c.op, c.wanted)
	case c.holds(got):
		return ""
	}
	return fmt.Sprintf("%s is %s, wanted %s %s", c.name, c.metric.kind.write(got, c.value), c.op, c.wanted)
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
