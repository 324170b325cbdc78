// Package result is what a bench has measured: plain data that is the JSON of
// "pglimit bench --output json", and from which the printed table, the recommendation, the
// HTML report and the comparison of two runs are made.
//
//	report.go   the whole outcome, and what was run on what
//	run.go      one strategy under one load, once
//	groups.go   runs of one strategy under one load, repeated: medians and spread
//	file.go     reading and writing
//
// Fields of the JSON are added, never renamed: scripts read them. Rates are per second,
// latencies are microseconds, other times seconds, sizes bytes. A pointer is null where
// the figure is not known.
package result

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
)

// Report is the outcome of one command.
type Report struct {
	Command string    `json:"command"` // the whole command line, without passwords
	Started time.Time `json:"started"`
	Server  Server    `json:"server"`
	Client  Client    `json:"client"`

	Seed           uint64 `json:"seed"`
	AuditDecisions int    `json:"audit_decisions"` // of each run, at most

	// Interrupted: the command ended before everything was run. The last run may then be
	// shorter than the others.
	Interrupted bool `json:"interrupted"`

	Scenarios []Scenario `json:"scenarios"` // in the order in which they were run
	Runs      []Run      `json:"runs"`      // in the order in which they were run

	// Capacity is what "pglimit bench capacity" has found, null elsewhere.
	Capacity []Capacity `json:"capacity,omitempty"`
}

// Server that was measured.
type Server struct {
	Version  string            `json:"version"`            // as it says itself: "15.8 (Debian 15.8-1)"
	Source   string            `json:"source"`             // names the database, in words
	Settings map[string]string `json:"settings,omitempty"` // those that matter, as "show" prints them
}

// Client is the machine and the program that made the load.
type Client struct {
	Version string `json:"version"` // of pglimit
	Go      string `json:"go"`
	OS      string `json:"os"`   // linux/amd64
	CPUs    int    `json:"cpus"` // of the machine; the server shares them if it is local
}

// Scenario is a load that several strategies were put under.
type Scenario = scenario.Scenario

// Capacity of one strategy: the highest rate of arrivals at which it is fast.
type Capacity struct {
	Strategy string `json:"strategy"`

	// P99Bound is what the 99th percentile of latency had to stay under, and Rate the
	// highest arrival rate at which it did. 0: it did at none.
	P99Bound float64 `json:"p99_bound_us"`
	Rate     float64 `json:"rate"`

	Probes []Probe `json:"probes"` // in the order in which they were made
}

// Probe is a short run at so many arrivals per second. The first is a closed loop of all callers, with the rate 0: it
// shows how much there may be to be had.
type Probe struct {
	Rate               float64 `json:"rate"`
	DecisionsPerSecond float64 `json:"decisions_per_second"`
	P99                float64 `json:"p99_us"`
	FailedShare        float64 `json:"failed_share"` // of the requests
	Kept               bool    `json:"kept"`         // p99 stayed under the bound, and the rate was reached
	OverTokens         int64   `json:"over_tokens"`  // the worst over-admission of any key
}

// OverTokens is the worst of any probe.
func (c Capacity) OverTokens() (worst int64) {
	for _, p := range c.Probes {
		worst = max(worst, p.OverTokens)
	}
	return worst
}

// Strategies in the order in which they ran.
func (r Report) Strategies() (names []string) {
	for _, c := range r.Capacity {
		names = append(names, c.Strategy)
	}
	for _, run := range r.Runs {
		if !slices.Contains(names, run.Strategy) {
			names = append(names, run.Strategy)
		}
	}
	return names
}
