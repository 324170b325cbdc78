package pglimit_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// config without the stages that may answer in the strategy's stead or call it from
// another goroutine.
func config(change func(*pglimit.Config)) pglimit.Config {
	c := pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10).WithBurst(20), Combine: pglimit.Combine{Off: true}, Memory: pglimit.Memory{Off: true}, Breaker: pglimit.Breaker{Off: true}, Timeout: pglimit.NoTimeout}
	if change != nil {
		change(&c)
	}
	return c
}

func newLimiter(t *testing.T, strategy pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	return newOn(t, noDB{}, strategy, change)
}

func newOn(t *testing.T, pool pglimit.Pool, strategy pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimit.New(pool, strategy, config(change))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// What a Limiter says that it was made with makes another.
func TestAConfigThatWasToldMakesAnotherLimiter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]pglimit.Config{
		"defaults":   {},
		"no stages":  config(nil),
		"new keys":   {NewKeys: pglimit.NewKeys{Limit: pglimit.PerSecond(2)}},
		"leases":     {Leases: pglimit.Leases{On: true}},
		"every time": {MaxWait: time.Second, MaxAhead: time.Second, IDTTL: time.Hour, Timeout: time.Hour},
	} {
		c.Name, c.Limit = "api", pglimit.PerSecond(10)
		first := newLimiter(t, pglimittest.Memory(), func(given *pglimit.Config) { *given = c })
		second := newLimiter(t, pglimittest.Memory(), func(given *pglimit.Config) { *given = first.Config() })
		if told, again := first.Config(), second.Config(); !reflect.DeepEqual(told, again) {
			t.Errorf("%s: made with %+v, and then with %+v", name, told, again)
		}
		if err := errors.Join(first.Close(t.Context()), second.Close(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

func TestNewRefusesAConfig(t *testing.T) {
	t.Parallel()
	burstOfOne := func(limit pglimit.Limit) error {
		if limit.Burst == 1 {
			return nil
		}
		return &pglimit.LimitError{Limit: limit, Field: "Burst", Why: fmt.Sprintf("is %d: fake keeps a burst of 1 only", limit.Burst)}
	}
	for _, test := range []struct {
		change   func(*pglimit.Config)
		strategy pglimit.Strategy
		field    string
		want     string
	}{
		{field: "Name", change: func(c *pglimit.Config) { c.Name = "" },
			want: "pglimit: Config.Name is empty: name it, with a constant if there is only one"},
		{field: "Name", change: func(c *pglimit.Config) { c.Name = strings.Repeat("n", 129) },
			want: "pglimit: Config.Name has 129 bytes: at most 128 are allowed (hash what is longer)"},
		{field: "Name", change: func(c *pglimit.Config) { c.Name = "\x00" },
			want: `pglimit: Config.Name "\x00" has a NUL byte, which Postgres cannot store`},
		{field: "Name", change: func(c *pglimit.Config) { c.Name = "\xff" },
			want: `pglimit: Config.Name "\xff" is not valid UTF-8: encode bytes, as hex for instance`},
		{field: "Limit", change: func(c *pglimit.Config) { c.Limit = pglimit.Limit{} },
			want: "pglimit: Config.Limit.Tokens is 0: it must be at least 1"},
		{field: "Limit", change: func(c *pglimit.Config) { c.Limit.Period = -1 },
			want: "pglimit: Config.Limit.Period is -1ns: it must be longer than zero"},
		{field: "Limit", strategy: &fake{check: burstOfOne},
			want: "pglimit: Config.Limit.Burst is 20: fake keeps a burst of 1 only"},
		{field: "Timeout", change: func(c *pglimit.Config) { c.Timeout = -time.Second },
			want: "pglimit: Config.Timeout is -1s: it must be positive; 0 means 1s, and NoTimeout none"},
		{field: "Durability", change: func(c *pglimit.Config) { c.Durability = 7 },
			want: "pglimit: Config.Durability is 7: it must be Relaxed or Durable"},
		{field: "IDTTL", change: func(c *pglimit.Config) { c.IDTTL = -time.Second },
			want: "pglimit: Config.IDTTL is -1s: it must be from 1ms to 24h0m0s; 0 means 1m0s"},
		{field: "IDTTL", change: func(c *pglimit.Config) { c.IDTTL = 25 * time.Hour },
			want: "pglimit: Config.IDTTL is 25h0m0s: it must be from 1ms to 24h0m0s; 0 means 1m0s"},
		{field: "Combine.Lanes", change: func(c *pglimit.Config) { c.Combine.Lanes = -1 },
			want: "pglimit: Config.Combine.Lanes is -1: it must be from 1 to 1024; 0 means 2"},
		{field: "Combine.Lanes", change: func(c *pglimit.Config) { c.Combine.Lanes = 1025 },
			want: "pglimit: Config.Combine.Lanes is 1025: it must be from 1 to 1024; 0 means 2"},
		{field: "MaxWaiting", change: func(c *pglimit.Config) { c.MaxWaiting = -1 },
			want: "pglimit: Config.MaxWaiting is -1: it must not be negative; 0 means 65536"},
		{field: "MaxWait", change: func(c *pglimit.Config) { c.MaxWait = -time.Second },
			want: "pglimit: Config.MaxWait is -1s: it must be from 0 to 1751999h59m58s with this limit"},
		{field: "MaxAhead", change: func(c *pglimit.Config) { c.MaxAhead = pglimit.MaxWindow },
			want: "pglimit: Config.MaxAhead is 1752000h0m0s: it must be from 0 to 1751999h59m58s with this limit"},
		{field: "Memory.TTL", change: func(c *pglimit.Config) { c.Memory.TTL = -1 },
			want: "pglimit: Config.Memory.TTL is -1ns: it must not be negative; 0 means 1s, and Memory.Off none"},
		{field: "Memory.Keys", change: func(c *pglimit.Config) { c.Memory.Keys = -1 },
			want: "pglimit: Config.Memory.Keys is -1: it must not be negative; 0 means 65536"},
		{field: "Limits", change: func(c *pglimit.Config) { c.Limits = new(pglimit.Limits) },
			want: "pglimit: Config.Limits has no pool: LimitsFrom needs one, such as a *pgxpool.Pool"},
		{field: "Limits", change: func(c *pglimit.Config) { c.Limits = pglimit.LimitsFrom(nil, pglimit.LimitsConfig{}) },
			want: "pglimit: Config.Limits has no pool: LimitsFrom needs one, such as a *pgxpool.Pool"},
		{field: "NewKeys.Limit", change: func(c *pglimit.Config) { c.NewKeys.Keys = 7 },
			want: "pglimit: Config.NewKeys.Limit is missing: set it, such as PerSecond(100), or leave NewKeys out"},
		{field: "NewKeys.Limit", change: func(c *pglimit.Config) { c.NewKeys.OnRefused = pglimit.FailOpen },
			want: "pglimit: Config.NewKeys.Limit is missing: set it, such as PerSecond(100), or leave NewKeys out"},
		{field: "NewKeys.Limit", change: func(c *pglimit.Config) { c.NewKeys.Limit = pglimit.Limit{Tokens: 5} },
			want: "pglimit: Config.NewKeys.Limit.Period is 0s: it must be longer than zero"},
		{field: "NewKeys.Limit", strategy: &fake{check: burstOfOne}, change: func(c *pglimit.Config) { c.Limit.Burst, c.NewKeys.Limit = 1, pglimit.PerSecond(100) },
			want: "pglimit: Config.NewKeys.Limit.Burst is 100: fake keeps a burst of 1 only"},
		{field: "NewKeys.Limit", strategy: counting{&fake{}}, change: func(c *pglimit.Config) { c.NewKeys.Limit = pglimit.PerSecond(100) },
			want: "pglimit: Config.NewKeys.Limit needs a strategy that does not count denials, and fake does: leave NewKeys out, or use strategies.TokenBucket{}"},
		{field: "NewKeys.Keys", change: func(c *pglimit.Config) { c.NewKeys = pglimit.NewKeys{Limit: pglimit.PerSecond(100), Keys: -1} },
			want: "pglimit: Config.NewKeys.Keys is -1: it must not be negative; 0 means 65536"},
		{field: "Name", change: func(c *pglimit.Config) {
			c.Name, c.NewKeys.Limit = strings.Repeat("n", 118), pglimit.PerSecond(100)
		},
			want: `pglimit: Config.Name has 118 bytes: with Config.NewKeys at most 117 are allowed, because new keys are counted as "name (new keys)"`},
		{field: "Name", change: func(c *pglimit.Config) { c.Name = "x (new keys)" },
			want: `pglimit: Config.Name is "x (new keys)": that names buckets beside those of limiter "x", so no limiter may end in " (new keys)"`},
		{field: "Name", change: func(c *pglimit.Config) { c.Name = "x (observed)" },
			want: `pglimit: Config.Name is "x (observed)": that names buckets beside those of limiter "x", so no limiter may end in " (observed)"`},
		{field: "Leases.TTL", change: func(c *pglimit.Config) { c.Leases.TTL = time.Millisecond },
			want: "pglimit: Config.Leases.TTL is 1ms: it must be from 10ms to 10s; 0 means 1s"},
		{field: "Leases.TTL", change: func(c *pglimit.Config) { c.Leases.TTL = time.Minute },
			want: "pglimit: Config.Leases.TTL is 1m0s: it must be from 10ms to 10s; 0 means 1s"},
		{field: "Nodes", change: func(c *pglimit.Config) { c.Nodes = pglimit.NodesFrom(nil, nil) },
			want: "pglimit: Config.Nodes has no pool: NodesFrom needs one of the coordinator, such as a *pgxpool.Pool"},
		{field: "Nodes", change: func(c *pglimit.Config) { c.Nodes = pglimit.NodesFrom(noDB{}, nil) },
			want: "pglimit: Config.Nodes cannot make pools like that of the coordinator, which is no *pgxpool.Pool: give NodesFrom a function that opens them"},
		{field: "Nodes", change: func(c *pglimit.Config) {
			c.Nodes = pglimit.NodesFrom(noDB{}, func(string, uint16) (pglimit.Pool, error) { return noDB{}, nil })
		}, want: "pglimit: Config.Nodes is for strategies.TokenBucket{}: the table of fake stays on the coordinator"},
		{field: "Top", change: func(c *pglimit.Config) { c.Top = new(pglimit.Top) },
			want: "pglimit: Config.Top has no pool: TopFrom needs one, such as a *pgxpool.Pool"},
		{field: "Top", change: func(c *pglimit.Config) { c.Top = pglimit.TopFrom(nil, pglimit.TopConfig{}) },
			want: "pglimit: Config.Top has no pool: TopFrom needs one, such as a *pgxpool.Pool"},
		{field: "Top", change: func(c *pglimit.Config) {
			c.Top = pglimit.TopFrom(noDB{}, pglimit.TopConfig{HashKeys: []byte("short")})
		}, want: "pglimit: Config.Top has HashKeys of 5 bytes: at least 16 are needed, so that nobody can guess them"},
		{field: "Leases.On", change: func(c *pglimit.Config) { c.Leases.On = true },
			want: "pglimit: Config.Leases.On is more than the strategy fake can do: only token_bucket can"},
	} {
		limiter, err := pglimit.New(noDB{}, cmp.Or[pglimit.Strategy](test.strategy, &fake{}), config(test.change))
		if limiter != nil || err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
		var refused *pglimit.ConfigError
		if !errors.As(err, &refused) || refused.Field != test.field {
			t.Errorf("%#v, want field %s", err, test.field)
		}
		var limit *pglimit.LimitError
		if errors.As(err, &limit) != strings.HasPrefix(strings.TrimPrefix(err.Error(), "pglimit: Config."+test.field), ".") {
			t.Errorf("%v: LimitError is %v", err, limit)
		}
	}
}

// Every Config field whose value can be wrong is named in the error: here are all
// of them, so that a new one is not forgotten. (Block has a test of its own.)
func TestEveryConfigFieldIsKnown(t *testing.T) {
	t.Parallel()
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[pglimit.Config]()) {
		names = append(names, field.Name)
	}
	if got := strings.Join(names, " "); got != "Name Limit Timeout Durability OnError OnDecision OnRoundTrip Logger LogKeys MaxWaiting MaxWait MaxAhead IDTTL Block Limits Adjust NewKeys Nodes Top Combine Memory Leases Breaker" {
		t.Errorf("%s: test what is new in TestNewRefusesAConfig", got)
	}
}

func TestNewNeedsADatabaseAndAStrategy(t *testing.T) {
	t.Parallel()
	if _, err := pglimit.New(nil, &fake{}, config(nil)); err == nil || err.Error() != "pglimit: New needs a pool, such as a *pgxpool.Pool" {
		t.Error(err)
	}
	_, err := pglimit.New(noDB{}, nil, config(nil))
	for _, err := range []error{err, config(nil).Validate(nil)} {
		if err == nil || err.Error() != "pglimit: New needs a strategy, such as strategies.TokenBucket{}" {
			t.Error(err)
		}
	}
	_, err = pglimit.New(noDB{}, ruleless{&fake{}}, config(nil))
	for _, err := range []error{err, config(nil).Validate(ruleless{&fake{}})} {
		if err == nil || err.Error() != "pglimit: Rule of the strategy fake is nil: a token bucket returns strategies.TokenBucket{}.Rule()" {
			t.Error(err)
		}
	}
}

// ruleless is a strategy that names no rule.
type ruleless struct{ *fake }

func (ruleless) Rule() pglimit.Rule { return nil }

func TestWhatTheStrategyIsAsked(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(10).WithBurst(20)
	for name, test := range map[string]struct {
		durability pglimit.Durability
		ask        func(*pglimit.Limiter) (pglimit.Decision, error)
		want       rate.Request
	}{
		"Allow": {
			ask:  func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(t.Context(), "k") },
			want: rate.Request{Limiter: "api", Key: "k", Limit: limit, Tokens: 1, Unit: 1},
		},
		"AllowN": {
			ask:  func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.AllowN(t.Context(), "k", 20) },
			want: rate.Request{Limiter: "api", Key: "k", Limit: limit, Tokens: 20, Unit: 20},
		},
		"Peek": {
			ask:  func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Peek(t.Context(), "k") },
			want: rate.Request{Limiter: "api", Key: "k", Limit: limit, Unit: 1},
		},
		"durably": {
			durability: pglimit.Durable,
			ask:        func(l *pglimit.Limiter) (pglimit.Decision, error) { return l.Allow(t.Context(), "k") },
			want:       rate.Request{Limiter: "api", Key: "k", Limit: limit, Tokens: 1, Unit: 1, Durability: pglimit.Durable},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decided := pglimit.Decision{Allowed: true, Granted: test.want.Tokens, Remaining: 19, At: time.UnixMicro(1)}
			strategy := &fake{take: answer(decided)}
			limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Durability = test.durability })
			d, err := test.ask(limiter)
			decided.Limiter, decided.Key, decided.Limit = "api", "k", limit
			if err != nil || d != decided {
				t.Errorf("%+v, %v", d, err)
			}
			if want := [][]rate.Request{{test.want}}; !reflect.DeepEqual(strategy.taken, want) {
				t.Errorf("asked %+v, want %+v", strategy.taken, want)
			}
			if !reflect.DeepEqual(strategy.session, postgres.OnPool(noDB{})) {
				t.Errorf("on %v", strategy.session)
			}
		})
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{pglimit.NoTimeout, 0, time.Hour} {
		strategy := &fake{}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Timeout = timeout })
		if err := limiter.Reset(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(strategy.reset, []string{"api/k"}) || !reflect.DeepEqual(strategy.session, postgres.OnPool(noDB{})) {
			t.Errorf("%v on %v", strategy.reset, strategy.session)
		}
		if _, limited := strategy.ctx.Deadline(); limited != (timeout != pglimit.NoTimeout) {
			t.Errorf("timeout %v: deadline %t", timeout, limited)
		}
	}
}

// silent is a strategy that answers with nothing.
type silent struct{ pglimit.Strategy }

func (silent) Name() string              { return "silent" }
func (silent) Check(*rate.Request) error { return nil }
func (silent) Rule() pglimit.Rule        { return bucket.Rule{} }
func (silent) Take(context.Context, pglimit.Session, []rate.Request) ([]pglimit.Decision, error) {
	return nil, nil
}

func TestAStrategyWithoutAnAnswerIsAnError(t *testing.T) {
	t.Parallel()
	var nobody *pgxpool.Pool
	if _, err := pglimit.New(nobody, silent{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1)}); err == nil {
		t.Error("a nil pool is taken for a database")
	}
	limiter, err := pglimit.New(new(pgxpool.Pool), silent{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(1)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.Allow(t.Context(), "k"); err == nil {
		t.Error("no decision is no error")
	}
}

// What a strategy cannot do is an error that says so.
func TestAStrategyThatOnlyTakesWillDo(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &onlyTakes{}, nil)
	if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	if err := limiter.Reset(t.Context(), "k"); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "only takes") {
		t.Errorf("Reset: %v", err)
	}
}

type onlyTakes struct{}

func (*onlyTakes) Name() string              { return "only takes" }
func (*onlyTakes) Check(*rate.Request) error { return nil }
func (*onlyTakes) Rule() pglimit.Rule        { return bucket.Rule{} }
func (*onlyTakes) Take(_ context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		decisions[i] = pglimit.Decision{Allowed: true, Granted: r.Tokens}
	}
	return decisions, nil
}
