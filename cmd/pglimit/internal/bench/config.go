package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Distributions of requests over keys.
const (
	Uniform = "uniform" // every key is as likely
	Zipf    = "zipf"    // a few keys get most: the share of the n-th is in proportion to 1/n^1.1
)

// Arrivals of an open loop.
const (
	Poisson  = "poisson"  // independent of one another, as from many users
	Constant = "constant" // evenly spaced
)

// Bounds that keep a typing error from eating the machine.
const (
	maxKeys    = 10_000_000
	maxCallers = 100_000
	maxRPS     = 10_000_000
	maxAudit   = 100_000_000
)

// minAuditPerCaller is the room that an audit of every caller needs.
const minAuditPerCaller = 16

// AuditBytes is the memory that an audited decision takes at the worst: 16 while the load
// runs, the others when it is over and histories are sorted by key and time. Measured
// with 4 million decisions: 94 if all are of one key, 66 if of 20.
const AuditBytes = 100

// Config says what to run. [DefaultConfig] has the defaults; the zero value is not
// valid. Errors name the flag of the command line that sets the field.
type Config struct {
	// Strategies to run, one after another.
	Strategies []pglimit.Strategy

	// Published adds the statements of the write-up (README, Origin) as published,
	// which keep a burst of 1 only.
	Published bool

	// Limit of each key. A strategy that cannot keep it gets the same rate with a
	// burst of 1, and the report says so.
	Limit pglimit.Limit

	// Cost is the number of tokens of one request.
	Cost int64

	// Keys is how many keys there are, and Distribution how requests are spread over
	// them.
	Keys         int
	Distribution string

	// Callers in all instances together: each has at most one request under way.
	Callers int

	// Instances, each with a Limiter and a pool of Conns connections of its own, as
	// if it were another process.
	Instances, Conns int

	// RPS is the number of arrivals per second in all, spread in time as Arrivals
	// says. Zero: a closed loop, in which each caller asks again when it has its answer.
	RPS      float64
	Arrivals string

	// Warmup is how long the load runs before it is measured, for Duration.
	Warmup, Duration time.Duration

	// Timeout of one decision. Zero: none.
	Timeout    time.Duration
	Durability pglimit.Durability

	// The stages between a limiter and its strategy, as in [pglimit.Config]: a zero is
	// the library's default. The write-up's statements run without any stage, and a
	// strategy that is no [pglimit.Leaser] runs without leases.
	NoCombining       bool
	Lanes, MaxWaiting int
	NoMemory          bool
	DenialTTL         time.Duration
	DenialKeys        int
	Leases            bool
	LeaseTTL          time.Duration

	// AuditDecisions is how many decisions of each run are kept for the audit at
	// most, see [AuditBytes] and history.go. Zero: no audit.
	AuditDecisions int

	// Seed of everything that is random here. Two runs with one seed ask for the same
	// keys, but not at the same moments.
	Seed uint64
}

// DefaultConfig is what "pglimit bench" runs without flags, except for the strategies.
//
// The keys are few, so that callers meet on them. The limit is so low that every strategy
// reaches it on a slow machine too: only denials by the limit, and not by a locked row,
// show whether denials are due. Yet 400 grants a second are enough to be audited.
// Measured on two busy cores, PostgreSQL 15: the slowest strategy, for_update_nowait,
// decides 6,500 times a second, and 3 % of its denials are contended. With 4 keys of
// 1000/1s it never reached the limit, and all were.
func DefaultConfig() Config {
	return Config{
		Limit:          pglimit.PerSecond(20),
		Cost:           1,
		Keys:           20,
		Distribution:   Uniform,
		Callers:        64,
		Instances:      1,
		Conns:          16,
		Arrivals:       Poisson,
		Warmup:         500 * time.Millisecond,
		Duration:       5 * time.Second,
		AuditDecisions: 4_000_000,
		Seed:           1,
	}
}

// Validate returns an error that names the flag, its value and what is allowed.
func (c Config) Validate() error {
	if len(c.Strategies) == 0 && !c.Published {
		return errors.New("--strategies names none: name at least one")
	}
	if err := c.Limit.Validate(); err != nil {
		return fmt.Errorf("--limit and --burst: %w", err)
	}
	for _, n := range []struct {
		flag      string
		value     int64
		low, high int64
	}{
		{"--cost", c.Cost, 1, c.Limit.Burst},
		{"--keys", int64(c.Keys), 1, maxKeys},
		{"--callers", int64(c.Callers), 1, maxCallers},
		{"--instances", int64(c.Instances), 1, int64(c.Callers)},
		{"--conns", int64(c.Conns), 1, maxCallers},
		{"--audit", int64(c.AuditDecisions), 0, maxAudit},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%s is %d: it must be from %d to %d%s", n.flag, n.value, n.low, n.high, c.why(n.flag))
		}
	}
	if least := minAuditPerCaller * c.Callers; c.AuditDecisions > 0 && c.AuditDecisions < least {
		return fmt.Errorf("--audit is %d: it must be 0, or at least %d, which is %d for each caller", c.AuditDecisions, least, minAuditPerCaller)
	}
	switch {
	case c.Distribution != Uniform && c.Distribution != Zipf:
		return fmt.Errorf("--distribution is %q: it must be %s or %s", c.Distribution, Uniform, Zipf)
	case c.Arrivals != Poisson && c.Arrivals != Constant:
		return fmt.Errorf("--arrivals is %q: it must be %s or %s", c.Arrivals, Poisson, Constant)
	case !(c.RPS >= 0 && c.RPS <= maxRPS):
		return fmt.Errorf("--rps is %v: it must be from 0 (closed loop) to %d", c.RPS, maxRPS)
	case c.Duration < 10*time.Millisecond:
		return fmt.Errorf("--duration is %v: it must be at least 10ms", c.Duration)
	case c.Warmup < 0:
		return fmt.Errorf("--warmup is %v: it must not be negative; 0 means none", c.Warmup)
	case c.Timeout < 0:
		return fmt.Errorf("--timeout is %v: it must not be negative; 0 means none", c.Timeout)
	}
	return c.validateStages()
}

func (c Config) why(flag string) string {
	switch flag {
	case "--cost":
		return fmt.Sprintf(", the burst of %v", c.Limit)
	case "--instances":
		return ", the number of callers"
	}
	return ""
}

// plan is one strategy with the limit that it runs under.
type plan struct {
	strategy pglimit.Strategy
	limit    pglimit.Limit
	cost     int64
}

// plan of a strategy. If it refuses the limit, it gets requests of one token and a burst
// of 1, with as many requests as the others: cost n under 1000/1s becomes cost 1 under
// 1000 per n seconds.
func (c Config) plan(strategy pglimit.Strategy) (plan, error) {
	refused := strategy.Check(c.Limit)
	if refused == nil {
		return plan{strategy, c.Limit, c.Cost}, nil
	}
	single := pglimit.Limit{Tokens: c.Limit.Tokens, Period: c.Limit.Period * time.Duration(c.Cost), Burst: 1}
	if single.Period/time.Duration(c.Cost) != c.Limit.Period || single.Validate() != nil || strategy.Check(single) != nil {
		return plan{}, fmt.Errorf("%s cannot run under %v: %w", strategy.Name(), c.Limit, refused)
	}
	return plan{strategy, single, 1}, nil
}
