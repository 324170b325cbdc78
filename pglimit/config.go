package pglimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of a [Limiter]. Name and Limit are required. The zero value of every
// other field means its default.
type Config struct {
	// Name of the limiter. Limiters with the same name and strategy share their
	// buckets, across processes; others do not. At most MaxLimiterBytes long.
	Name string

	// Limit of each key. When a new release changes it, the tokens that a key has used
	// stay used, and come back at the faster of both rates. While both releases run, they
	// grant together what the looser limit would.
	Limit Limit

	// Timeout of one decision or Reset, from the call to the answer. Zero: a second.
	// NoTimeout: only the deadline of the context.
	Timeout time.Duration

	// Durability of grants. Zero: Relaxed.
	Durability Durability

	// OnError answers the caller when no decision is known: Postgres cannot be reached, is
	// too slow, or refuses. Nil: the error is returned. See [FailOpen], [FailClosed] and
	// [FailLocal].
	//
	// It is not called for an invalid request, when the caller cancelled or the Limiter is
	// closed, nor by Reset and ResetAll. Nor for [ErrNotMigrated], [ErrPermission] and [ErrPooler]: these
	// do not end by themselves, as an outage does, and a limiter that fails open would let
	// everybody pass for ever, unseen.
	OnError func(ctx context.Context, request Request, err error) (Decision, error)

	// Logger gets the failures: requests of which no decision is known, whatever OnError
	// answers. It gets the first of each [Cause] at once, then their number, at most every
	// ten seconds. It also hears when the Breaker opens and closes. Nil: nothing is logged.
	Logger *slog.Logger

	// LogKeys adds the key to the failures that are logged. A key may be somebody's name:
	// without LogKeys, it is logged only if an error of Postgres's quotes it.
	LogKeys bool

	// MaxWaiting is how many callers may wait for an answer at once. One more gets
	// ErrOverloaded. Each request that a Take sends counts as one. Zero: 65,536.
	MaxWaiting int

	// The stages between the callers and Postgres.
	Combine Combine
	Memory  Memory
	Leases  Leases
	Breaker Breaker
}

// Combine configures the stage that sends requests together if they arrive while a call is
// under way. It is on unless Off.
type Combine struct {
	// Off sends each request by itself.
	Off bool

	// Lanes is how many lanes the keys are spread over. A lane has at most one call under
	// way, on one connection. Two keep a near server with few cores busy; for a far server,
	// or one with many cores, more can be faster. At most two more connections wait for
	// rows that somebody else holds locked. Zero: 2.
	Lanes int
}

// Memory configures the stage that denies without asking Postgres, when an earlier decision
// shows that the tokens cannot be there yet. It is on unless Off.
type Memory struct {
	// Off asks Postgres again after each denial.
	Off bool

	// TTL is how long a denial is remembered at most. For as long, a Reset or a larger
	// limit in another process may go unnoticed. Zero: a second.
	TTL time.Duration

	// Keys is how many keys are remembered at most. Each takes about 200 bytes plus the
	// key. Zero: 65,536.
	Keys int
}

// Leases configures the stage that fetches tokens of a busy key in advance and spends them
// without asking Postgres. It is off unless On.
type Leases struct {
	// On trades some fairness for speed: tokens that one process has fetched are denied to
	// the others. The strategy must be a [Leaser].
	On bool

	// TTL is how long a lease lasts at most. If a process dies, its tokens count as spent
	// after that time. From 10 ms to 10 s. Zero: a second.
	TTL time.Duration
}

// Breaker configures the circuit breaker. It is on unless Off.
//
// It opens when Postgres refused two calls in a row as unavailable, or is silent: a call had
// no answer for half of Config.Timeout (at least 50 ms), no other call had one meanwhile, and a
// new connection got no sign of life in the other half (at least 200 ms). Then all requests
// fail at once, also those under way. Every 200 ms (or Config.Timeout, if shorter) one caller
// asks for a sign of life; the first caller that gets it closes the breaker. A row that
// somebody holds locked does not open it, nor do callers who cancel.
type Breaker struct {
	// Off lets every caller wait for Postgres until Config.Timeout ends.
	Off bool
}

// NoTimeout, as [Config.Timeout]: a decision may take as long as its context allows.
const NoTimeout time.Duration = -1

const (
	defaultTimeout = time.Second

	// defaultLanes keeps Postgres busy with one call while the other's answer is on its way.
	defaultLanes = 2
	maxLanes     = 1024

	defaultMaxWaiting = 1 << 16

	defaultDenialTTL  = time.Second
	defaultDenialKeys = 1 << 16

	defaultLeaseTTL = time.Second
	minLeaseTTL     = 10 * time.Millisecond
	maxLeaseTTL     = 10 * time.Second
)

func orDefault[T int | time.Duration](value, otherwise T) T {
	if value == 0 {
		return otherwise
	}
	return value
}

// Validate returns nil if a limiter with the strategy can have this configuration, else a
// [*ConfigError]. [New] calls it too.
func (c Config) Validate(strategy Strategy) error {
	if strategy == nil {
		return errNoStrategy
	}
	if err := rate.CheckLimiter(c.Name); err != nil {
		var request *RequestError
		errors.As(err, &request)
		return &ConfigError{"Name", errors.New(request.Why)}
	}
	if err := c.Limit.Validate(); err != nil {
		return &ConfigError{"Limit", err}
	}
	if err := strategy.Check(c.Limit); err != nil {
		return &ConfigError{"Limit", err}
	}
	if c.Timeout < 0 && c.Timeout != NoTimeout {
		return &ConfigError{"Timeout", fmt.Errorf("is %v: it must be positive; 0 means %v, and NoTimeout none", c.Timeout, defaultTimeout)}
	}
	if c.Durability != Relaxed && c.Durability != Durable {
		return &ConfigError{"Durability", fmt.Errorf("is %d: it must be Relaxed or Durable", int(c.Durability))}
	}
	return c.validateStages(strategy)
}

func (c Config) validateStages(strategy Strategy) error {
	if c.Combine.Lanes < 0 || c.Combine.Lanes > maxLanes {
		return &ConfigError{"Combine.Lanes", fmt.Errorf("is %d: it must be from 1 to %d; 0 means %d", c.Combine.Lanes, maxLanes, defaultLanes)}
	}
	if c.MaxWaiting < 0 {
		return &ConfigError{"MaxWaiting", fmt.Errorf("is %d: it must not be negative; 0 means %d", c.MaxWaiting, defaultMaxWaiting)}
	}
	if c.Memory.Keys < 0 {
		return &ConfigError{"Memory.Keys", fmt.Errorf("is %d: it must not be negative; 0 means %d", c.Memory.Keys, defaultDenialKeys)}
	}
	if c.Memory.TTL < 0 {
		return &ConfigError{"Memory.TTL", fmt.Errorf("is %v: it must not be negative; 0 means %v, and Memory.Off none", c.Memory.TTL, defaultDenialTTL)}
	}
	if c.Leases.TTL != 0 && (c.Leases.TTL < minLeaseTTL || c.Leases.TTL > maxLeaseTTL) {
		return &ConfigError{"Leases.TTL", fmt.Errorf("is %v: it must be from %v to %v; 0 means %v", c.Leases.TTL, minLeaseTTL, maxLeaseTTL, defaultLeaseTTL)}
	}
	if _, able := strategy.(Leaser); c.Leases.On && !able {
		return &ConfigError{"Leases.On", fmt.Errorf("is more than the strategy %s can do: use a Leaser, such as strategies.TokenBucket{}", strategy.Name())}
	}
	return nil
}
