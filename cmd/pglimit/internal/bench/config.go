package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
)

// maxAudit and maxRounds keep a typing error from exhausting the machine.
const (
	maxAudit  = 100_000_000
	maxRounds = 1000
)

// minAuditPerCaller is the room that an audit of every caller needs.
const minAuditPerCaller = 16

// AuditBytes is the most memory that an audited decision takes: 16 bytes while the load runs, the rest afterwards, when
// histories are sorted by key and time. Measured with 4 million decisions: 94 if all are of one key, 66 with 20 keys.
const AuditBytes = 100

// DefaultAudit is how many decisions of each run are audited by default.
const DefaultAudit = 4_000_000

// DefaultRounds of the suite.
const DefaultRounds = 3

// Config says what to run. Errors name the command-line flag that sets the field.
type Config struct {
	// Scenarios to run, and under each the Strategies, one after another. The statements of the write-up
	// (docs/strategies.md, Origin) support only a burst of 1, and get tables of their own.
	Scenarios  []scenario.Scenario
	Strategies []pglimit.Strategy

	// SkipMissing leaves out strategies that the database is not migrated for, as exclusion_range where there is no
	// btree_gist. Otherwise that is an error, as it is if none is left.
	SkipMissing bool

	// Rounds is how often all of that is run, in turn.
	Rounds int

	// AuditDecisions is how many decisions of each run are kept for the audit at
	// most, see [AuditBytes] and history.go. Zero: no audit.
	AuditDecisions int

	// Seed of everything that is random here. Two runs with one seed ask for the same
	// keys, but not at the same moments.
	Seed uint64

	// Capacity searches the highest rate of arrivals at which the 99th percentile of latency stays under P99, with the
	// first scenario as the load and without rounds: see capacity.go.
	Capacity bool
	P99      time.Duration

	Command string // for the report: the whole command line
	Version string // for the report: of this program
}

// Validate returns an error that names the flag, its value and what is allowed.
func (c Config) Validate() error {
	switch {
	case len(c.Strategies) == 0:
		return errors.New("--strategies names none: name at least one")
	case len(c.Scenarios) == 0:
		return errors.New("--scenario names none: name at least one")
	case c.Rounds < 1 || c.Rounds > maxRounds:
		return fmt.Errorf("--repeat is %d: it must be from 1 to %d", c.Rounds, maxRounds)
	case c.AuditDecisions < 0 || c.AuditDecisions > maxAudit:
		return fmt.Errorf("--audit is %d: it must be from 0 to %d", c.AuditDecisions, maxAudit)
	case c.Capacity && (c.P99 < 100*time.Microsecond || c.P99 > longestLatency):
		return fmt.Errorf("--p99 is %v: it must be from 100µs to %v", c.P99, longestLatency)
	}
	names, titles := map[string]bool{}, map[string]bool{}
	for _, s := range c.Scenarios {
		if names[s.Name] || titles[s.Title] { // a report knows a load by its name, and a reader by its title
			return fmt.Errorf("there are two loads with the name %q or the title %q: each needs its own", s.Name, s.Title)
		}
		names[s.Name], titles[s.Title] = true, true
		if err := s.Validate(); err != nil {
			return err
		}
		if least := minAuditPerCaller * s.Callers; c.AuditDecisions > 0 && c.AuditDecisions < least {
			return fmt.Errorf("--audit is %d: it must be 0, or at least %d, which is %d for each caller", c.AuditDecisions, least, minAuditPerCaller)
		}
		for _, strategy := range c.Strategies {
			if _, err := s.Subject(strategy); err != nil {
				return err
			}
		}
	}
	return nil
}
