// Package result is what a bench has measured: plain data that is the JSON of
// "pglimit bench --output json", and from which the printed table, the recommendation, the
// HTML report and the comparison of two runs are made.
//
//	report.go   the whole outcome, and what was run on what
//	run.go      one strategy under one load, once
//	series.go   the same over time
//	groups.go   runs of one strategy under one load, repeated: medians and spread
//	words.go    a load in words
//	file.go     reading and writing
//
// Fields of the JSON are added, never renamed: scripts read them. Rates are per second,
// latencies are microseconds, other times seconds, sizes bytes. A pointer is null where
// the figure is not known.
package result

import (
	"slices"
	"time"
)

// Report is the outcome of one command.
type Report struct {
	Command string    `json:"command"` // the whole command line, without passwords
	Started time.Time `json:"started"`
	Server  Server    `json:"server"`
	Client  Client    `json:"client"`

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

// What strategies are compared by under a scenario: the best has the most of it.
const (
	ByGrants    = "grants"    // grants per second: nearly all is granted
	ByDenials   = "denials"   // denials per second: nearly all is denied
	ByDecisions = "decisions" // both
)

// Scenario is a load that several strategies were put under.
type Scenario struct {
	Name  string `json:"name"`  // many-keys-granted
	Title string `json:"title"` // many keys, all granted
	About string `json:"about"` // a sentence: what it stands for

	// StagesOf is the name of the scenario that has the same load without stages. Empty:
	// this one has none, or stands for itself.
	StagesOf string `json:"stages_of,omitempty"`

	CompareBy string `json:"compare_by"` // ByGrants, ByDenials or ByDecisions

	// AtMost is the most tokens that each run may grant by the write-up's own criterion.
	// 0: there is no such criterion.
	AtMost int64 `json:"at_most,omitempty"`

	Parameters Parameters `json:"parameters"`
}

// Parameters of a load.
type Parameters struct {
	Loop            string  `json:"loop"` // closed or open
	RPS             float64 `json:"rps,omitempty"`
	Arrivals        string  `json:"arrivals,omitempty"` // poisson or constant
	Phases          []Phase `json:"phases,omitempty"`   // if there is more than one
	Callers         int     `json:"callers"`
	Instances       int     `json:"instances"`
	Conns           int     `json:"conns"`
	Keys            int     `json:"keys"`
	Distribution    string  `json:"distribution"`        // uniform or zipf
	Exponent        float64 `json:"exponent,omitempty"`  // of zipf
	WithRows        bool    `json:"with_rows,omitempty"` // each key had a row before the load began
	Limit           string  `json:"limit"`
	Cost            int64   `json:"cost"`            // tokens of one request; the first of Costs
	Costs           []Cost  `json:"costs,omitempty"` // if requests differ
	Durability      string  `json:"durability"`
	TimeoutSeconds  float64 `json:"timeout_seconds"`
	WarmupSeconds   float64 `json:"warmup_seconds"`
	DurationSeconds float64 `json:"duration_seconds"`
	AuditDecisions  int     `json:"audit_decisions"`

	// The stages as asked for.
	Combining bool `json:"combining"`
	Memory    bool `json:"memory"`
	Leases    bool `json:"leases"`
	Breaker   bool `json:"breaker"`

	AddedLatencySeconds float64 `json:"added_latency_seconds,omitempty"` // to each round trip

	Seed uint64 `json:"seed"`
}

// Phase of a load.
type Phase struct {
	Rate    float64 `json:"rate"` // requests per second of all instances together
	Seconds float64 `json:"seconds"`
}

// Cost is how many tokens a share of the requests asks for.
type Cost struct {
	Tokens int64   `json:"tokens"`
	Share  float64 `json:"share"` // of 1
}

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
