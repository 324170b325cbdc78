package scenario

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// MaxRPS is the highest rate of arrivals.
const MaxRPS = 10_000_000

// Bounds that keep a typing error from exhausting the machine.
const (
	maxKeys    = 10_000_000
	maxCallers = 100_000
	maxCosts   = 100
	maxLatency = 10 * time.Second
)

// Validate returns an error that names the field, its value and what is allowed.
func (s Scenario) Validate() error {
	if limit := (*pglimit.LimitError)(nil); errors.As(s.Limit.Validate(), &limit) {
		return fmt.Errorf("limit: %s %s", strings.ToLower(limit.Field), limit.Why)
	}
	for _, n := range []struct {
		field string
		value int
		most  int
		why   string
	}{
		{"keys", s.Keys, maxKeys, ""},
		{"callers", s.Callers, maxCallers, ""},
		{"instances", s.Instances, s.Callers, ", the number of callers"},
		{"conns", s.Conns, maxCallers, ""},
		{"costs: the number of entries", len(s.Costs), maxCosts, ""},
	} {
		if n.value < 1 || n.value > n.most {
			return fmt.Errorf("%s is %d: it must be from 1 to %d%s", n.field, n.value, n.most, n.why)
		}
	}
	for _, c := range s.Costs {
		if c.Tokens < 1 || c.Tokens > s.Limit.Burst {
			return fmt.Errorf("cost is %d: it must be from 1 to %d, the burst of %v", c.Tokens, s.Limit.Burst, s.Limit)
		}
		if !(c.Share > 0) || math.IsInf(c.Share, 0) {
			return fmt.Errorf("costs: the share of %d is %v: it must be above 0", c.Tokens, c.Share)
		}
	}
	if err := s.validatePhases(); err != nil {
		return err
	}
	switch {
	case s.Distribution != Uniform && s.Distribution != Zipf:
		return fmt.Errorf("distribution is %q: it must be %s or %s", s.Distribution, Uniform, Zipf)
	case s.Distribution == Zipf && !(s.Exponent > 1 && s.Exponent <= 100):
		return fmt.Errorf("exponent is %v: it must be above 1, and at most 100", s.Exponent)
	case s.Arrivals != Poisson && s.Arrivals != Constant:
		return fmt.Errorf("arrivals is %q: it must be %s or %s", s.Arrivals, Poisson, Constant)
	case s.CompareBy != ByGrants && s.CompareBy != ByDenials && s.CompareBy != ByDecisions:
		return fmt.Errorf("compare-by is %q: it must be %s, %s or %s", s.CompareBy, ByGrants, ByDenials, ByDecisions)
	case s.Warmup < 0 || s.Timeout < 0:
		return fmt.Errorf("warmup is %v, timeout %v: they must not be negative; 0 means none", s.Warmup, s.Timeout)
	case s.Latency < 0 || s.Latency > maxLatency:
		return fmt.Errorf("latency is %v: it must be from 0 to %v", s.Latency, maxLatency)
	}
	return nil
}

func (s Scenario) validatePhases() error {
	if len(s.Phases) == 0 {
		return errors.New("phases has none: it must have at least one")
	}
	for _, p := range s.Phases {
		if !(p.Rate >= 0 && p.Rate <= MaxRPS) {
			return fmt.Errorf("rps is %v: it must be from 0 (closed loop) to %d", p.Rate, MaxRPS)
		}
		if p.Length < 10*time.Millisecond {
			return fmt.Errorf("duration is %v: it must be at least 10ms", p.Length)
		}
		if p.Rate > 0 != s.Open() {
			return errors.New("phases: some have a rate and some have none: a load is an open loop or a closed one")
		}
	}
	return nil
}
