package bench

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func validConfig() Config {
	c := DefaultConfig()
	for _, s := range strategies.All() {
		c.Strategies = append(c.Strategies, s)
	}
	return c
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	if err := validConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		"--strategies names none":                                   func(c *Config) { c.Strategies = nil },
		"--limit and --burst: ":                                     func(c *Config) { c.Limit.Tokens = 0 },
		"--cost is 0: it must be from 1 to":                         func(c *Config) { c.Cost = 0 },
		"--cost is 21: it must be from 1 to 20, the burst of 20/1s": func(c *Config) { c.Cost = 21 },
		"--keys is 0":        func(c *Config) { c.Keys = 0 },
		"--keys is 10000001": func(c *Config) { c.Keys = maxKeys + 1 },
		"--callers is 0":     func(c *Config) { c.Callers = 0 },
		"--instances is 65: it must be from 1 to 64, the number of callers": func(c *Config) { c.Instances = 65 },
		"--conns is 0":  func(c *Config) { c.Conns = 0 },
		"--audit is -1": func(c *Config) { c.AuditDecisions = -1 },
		"--audit is 1023: it must be 0, or at least 1024, which is 16 for each caller": func(c *Config) { c.AuditDecisions = 1023 },
		`--distribution is "normal"`: func(c *Config) { c.Distribution = "normal" },
		`--arrivals is "late"`:       func(c *Config) { c.Arrivals = "late" },
		"--rps is -1":                func(c *Config) { c.RPS = -1 },
		"--rps is NaN":               func(c *Config) { c.RPS = math.NaN() },
		"--duration is 0s":           func(c *Config) { c.Duration = 0 },
		"--warmup is -1s":            func(c *Config) { c.Warmup = -time.Second },
		"--timeout is -1s":           func(c *Config) { c.Timeout = -time.Second },
		"--lanes is -1: it must be":  func(c *Config) { c.Lanes = -1 },
		"--max-waiting is -1":        func(c *Config) { c.MaxWaiting = -1 },
		"--denial-ttl is -1s: it must not be negative; 0 means 1s, and --no-memory none": func(c *Config) { c.DenialTTL = -time.Second },
		"--denial-keys is -1":   func(c *Config) { c.DenialKeys = -1 },
		"--lease-ttl is 1h0m0s": func(c *Config) { c.LeaseTTL = time.Hour },
	} {
		c := validConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s...", err, want)
		}
	}
}

// exclusion_range keeps a burst of 1 only: it runs at the same rate of requests.
func TestStrategyThatRefusesTheLimitGetsABurstOfOne(t *testing.T) {
	t.Parallel()
	c := validConfig()
	c.Limit, c.Cost = pglimit.PerSecond(1000).WithBurst(50), 5
	p, err := c.plan(strategies.ExclusionRange{})
	want := pglimit.Limit{Tokens: 1000, Period: 5 * time.Second, Burst: 1}
	if err != nil || p.limit != want || p.cost != 1 {
		t.Errorf("%v of cost %d, %v; want %v of cost 1", p.limit, p.cost, err, want)
	}
	if p, err = c.plan(strategies.TokenBucket{}); err != nil || p.limit != c.Limit || p.cost != 5 {
		t.Errorf("%v of cost %d, %v; want what was configured", p.limit, p.cost, err)
	}
	c.Limit.Period = math.MaxInt64
	if _, err = c.plan(fake{name: "none", check: func(pglimit.Limit) error { return errors.New("never") }}); err == nil || !strings.Contains(err.Error(), "never") {
		t.Errorf("%v, want the strategy's own error", err)
	}
}
