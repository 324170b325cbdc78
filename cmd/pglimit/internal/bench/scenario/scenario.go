// Package scenario is what a bench can be asked to run: loads with a name, those of the user's own, and those read from
// a file.
//
//	scenario.go   a load, as plain data
//	builtin.go    the loads that have a name
//	file.go       a load in a YAML file, and single fields of it
//	validate.go   whether it makes sense
//	limiter.go    the limiters that it is put on, and the strategy with the limit that it can keep
//	words.go      a load in words
package scenario

import (
	"math"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Distributions of requests over keys.
const (
	Uniform = "uniform" // every key is as likely
	Zipf    = "zipf"    // a few keys get most: the share of the n-th is in proportion to 1/n^Exponent
)

// What strategies are compared by under a scenario: the best has the most of it.
const (
	ByGrants    = "grants"    // grants per second: nearly all is granted
	ByDenials   = "denials"   // denials per second: nearly all is denied
	ByDecisions = "decisions" // both
)

// Arrivals of an open loop.
const (
	Poisson  = "poisson"  // independent of one another, as from many users
	Constant = "constant" // evenly spaced
)

// Scenario is a load that strategies are put under, one after another. [Custom] has the defaults; the zero value is not
// valid. The fields have the names of a file.
type Scenario struct {
	Name  string `yaml:"name"`
	Title string `yaml:"title"`

	StagesOf  string `yaml:"-"`          // the scenario that has the same load without stages, if there is one
	CompareBy string `yaml:"compare-by"` // ByGrants, ByDenials or ByDecisions
	AtMost    int64  `yaml:"-"`          // tokens that may be granted by the write-up's criterion; 0: no criterion

	Once bool `yaml:"-"` // it is not repeated

	// Limit of each key. A strategy that cannot keep it gets the same rate with a burst of 1, and the report says so.
	Limit pglimit.Limit `yaml:"-"`

	// Costs of requests; at least one.
	Costs []Cost `yaml:"costs"`

	// Keys is how many keys there are, and Distribution how requests are spread over them. Exponent is for Zipf, and
	// above 1.
	Keys         int     `yaml:"keys"`
	Distribution string  `yaml:"distribution"`
	Exponent     float64 `yaml:"exponent"`

	// WithRows takes once from each key before the warm-up, so that each has a row.
	WithRows bool `yaml:"with-rows"`

	// Callers in all instances together: each has at most one request under way.
	Callers int `yaml:"callers"`

	// Instances, each with a Limiter and a pool of Conns connections of its own, as if it were another process.
	Instances int `yaml:"instances"`
	Conns     int `yaml:"conns"`

	// Phases of the load, one after another; at least one.
	Phases   []Phase `yaml:"phases"`
	Arrivals string  `yaml:"arrivals"` // of an open loop

	// Warmup is how long the load runs before it is measured.
	Warmup time.Duration `yaml:"warmup"`

	// Timeout of one decision. Zero: none.
	Timeout    time.Duration      `yaml:"timeout"`
	Durability pglimit.Durability `yaml:"-"`

	Stages Stages `yaml:",inline"`

	// Latency that each round trip takes longer.
	Latency time.Duration `yaml:"latency"`
}

// Cost is how many tokens a share of the requests asks for.
type Cost struct {
	Tokens int64   `yaml:"tokens"`
	Share  float64 `yaml:"share"` // of all Shares together
}

// Phase is a stretch of the load. Rate is arrivals per second in all. Zero: a closed loop, in which each caller asks
// again when it has its answer.
type Phase struct {
	Rate   float64       `yaml:"rate"`
	Length time.Duration `yaml:"duration"`
}

// Stages between a limiter and its strategy, as [pglimit.Config] has them by default. The write-up's
// statements run without any stage, and a strategy that is no [pglimit.Leaser] runs without leases.
type Stages struct {
	NoCombining bool `yaml:"no-combining"`
	NoMemory    bool `yaml:"no-memory"`
	Leases      bool `yaml:"leases"`
	NoBreaker   bool `yaml:"no-breaker"`
}

// bare is one round trip per decision.
var bare = Stages{NoCombining: true, NoMemory: true}

// Custom is the load that the user's flags change.
//
// It has few keys, so that callers contend for them. The limit is so low that every strategy reaches it even on a slow
// machine: only denials by the limit, and not by a locked row, show whether denials are due. Yet 400 grants a second
// are enough to be audited. Measured on two busy cores, PostgreSQL 15: the slowest strategy, for_update_nowait, decides
// 6,500 times a second, and 3 % of its denials are contended. With 4 keys of 1000/1s it never reached the limit, and
// all were.
func Custom() Scenario {
	return Scenario{
		Name: "custom", Title: "a load of your own",
		CompareBy:    ByDecisions,
		Limit:        pglimit.PerSecond(20),
		Costs:        []Cost{{1, 1}},
		Keys:         20,
		Distribution: Uniform,
		Exponent:     1.1, // of 100,000 keys, the first gets 13 % of the requests and the first hundred 58 %
		Callers:      64,
		Instances:    1,
		Conns:        16,
		Phases:       []Phase{{Length: 5 * time.Second}},
		Arrivals:     Poisson,
		Warmup:       500 * time.Millisecond,
	}
}

// Length of the whole load, without its warm-up.
func (s Scenario) Length() (sum time.Duration) {
	for _, p := range s.Phases {
		sum += p.Length
	}
	return sum
}

// Open says that requests arrive on a schedule.
func (s Scenario) Open() bool { return len(s.Phases) > 0 && s.Phases[0].Rate > 0 }

// lasting has the phases scaled to that length, and the write-up's criterion with them: of one token per 2 s there are 2
// within 3 s, one at the beginning, so that is rounded up.
func (s Scenario) lasting(length time.Duration) Scenario {
	factor := length.Seconds() / s.Length().Seconds()
	s.Phases = slices.Clone(s.Phases)
	for i, p := range s.Phases {
		s.Phases[i].Length = time.Duration(math.Round(float64(p.Length) * factor))
	}
	s.AtMost = int64(math.Ceil(float64(s.AtMost)*factor - 1e-6)) // 0.07 x 300 is a little above 21
	return s
}
