package pglimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of a [Limiter]. Name and Limit are required, the zero value of every
// other field is its default.
type Config struct {
	// Name of the limiter. Limiters of one name share their buckets, across
	// processes; limiters of different names do not. At most MaxLimiterBytes.
	Name string

	// Limit for each key. When a new release changes it, what a key has used so
	// far stays used, and flows back at the faster of both rates; while both releases
	// run, they grant what the looser limit would.
	Limit Limit

	// Timeout of one decision, or Reset, from the call to the answer. Zero: a second.
	// NoTimeout: none but the context's.
	Timeout time.Duration

	// Durability of grants. Zero: Relaxed.
	Durability Durability

	// OnError is asked when no decision is known: Postgres cannot be reached, is
	// too slow, or refuses. It is not asked when the request itself is at fault, when
	// the caller cancelled its context or the Limiter is closed, nor by Reset and ResetAll.
	// Nor when the database is set up wrongly ([ErrNotMigrated], [ErrPermission]): that is no
	// outage, which ends by itself, and a limiter that fails open would let everybody pass
	// for ever, unseen. Nil: the error is returned. See [FailOpen], [FailClosed] and
	// [FailLocal].
	OnError func(ctx context.Context, request Request, err error) (Decision, error)

	// Logger hears of requests of which no decision is known, whatever OnError makes of
	// them: of the first of a [Cause] at once, then how many there were, every ten seconds
	// while they go on; and when the Breaker opens and closes. Keys are not logged, unless an
	// error of Postgres's has one. Nil: nothing is.
	Logger *slog.Logger

	// MaxWaiting is how many callers may wait for an answer at once; one more gets
	// ErrOverloaded. Zero: 65,536.
	MaxWaiting int

	// The stages between the callers and Postgres.
	Combine Combine
	Memory  Memory
	Leases  Leases
	Breaker Breaker
}

// Combine configures the stage in which requests that arrive while others are under way go
// out together. It is on unless Off.
type Combine struct {
	// Off sends each request by itself.
	Off bool

	// Lanes, over which keys are spread: each has at most one call, on one connection,
	// under way. Two keep a near server with few cores busy; where it is far away or has
	// many cores, more can be faster. Two more connections at most wait for rows that
	// somebody else holds locked. Zero: 2.
	Lanes int
}

// Memory configures the stage in which a request that is known to be denied is denied
// without asking. It is on unless Off.
type Memory struct {
	// Off asks Postgres again after each denial.
	Off bool

	// TTL is how long a denial is remembered at most, and so how long a Reset, or a
	// larger limit, of another process may go unnoticed. Zero: a second.
	TTL time.Duration

	// Keys that are remembered at most, in about 200 bytes each and the key. Zero: 65,536.
	Keys int
}

// Leases configures the stage in which this process fetches tokens of a busy key in advance
// and spends them without asking. It is off unless On.
type Leases struct {
	// On trades some fairness for speed: what one process has fetched, another is denied.
	// The strategy must be a [Leaser].
	On bool

	// TTL is how long tokens may be set aside, and so how long those of a process that
	// died are missed. Zero: a second.
	TTL time.Duration
}

// Breaker configures the circuit breaker. It is on unless Off.
//
// When two calls in a row found Postgres unavailable, or without an answer within
// Config.Timeout (100 ms at least), or one is that late and nor is there a sign of life, others
// fail at once, and what is under way is given up. Every 200 ms at
// most, one caller asks for a sign of life; the first who gets one is let through, and all
// after it. A row that somebody holds locked, and callers who cancel, do not open it.
type Breaker struct {
	// Off lets every caller try for as long as Config.Timeout.
	Off bool
}

// NoTimeout, as [Config.Timeout]: a decision takes as long as its context allows.
const NoTimeout time.Duration = -1

const (
	defaultTimeout = time.Second

	// defaultLanes is as many connections as combining needs to keep Postgres busy
	// while other answers are on their way.
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

// Validate says what is wrong with the configuration of a limiter that decides with the
// strategy: nil, or a [*ConfigError]. [New] asks it too.
func (c Config) Validate(strategy Strategy) error {
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
