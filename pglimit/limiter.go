package pglimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

	// Timeout of one decision, from the call to the answer. Zero: none but the
	// context's.
	Timeout time.Duration

	// Durability of grants. Zero: Relaxed.
	Durability Durability

	// OnError is asked when no decision is known: Postgres cannot be reached, is
	// too slow, or refuses. It is not asked when the request itself is at fault, nor
	// when the caller cancelled its context, nor by Reset. Nil: the error is
	// returned. See [FailOpen] and [FailClosed]; wrap them to log the error.
	OnError func(ctx context.Context, request Request, err error) (Decision, error)

	// NoCombining sends each request by itself. Otherwise requests that arrive while
	// others of the same lane are under way go out together.
	NoCombining bool

	// Lanes of combining, over which keys are spread: each has at most one call, on one
	// connection, under way. Two keep a near server with few cores busy; where it is far
	// away or has many cores, more can be faster. Two more connections at most wait for
	// rows that somebody else holds locked. Zero: 2.
	Lanes int

	// MaxWaiting is how many callers may wait for an answer at once; one more gets
	// ErrOverloaded. Zero: 65,536.
	MaxWaiting int

	// NoMemory asks Postgres again after each denial. Otherwise a request that is
	// known to be denied is denied without asking.
	NoMemory bool

	// DenialTTL is how long a denial is remembered at most, and so how long a Reset, or
	// a larger limit, of another process may go unnoticed. Zero: a second.
	DenialTTL time.Duration

	// DenialKeys is how many keys are remembered at most, in about 200 bytes each and the
	// key. Zero: 65,536.
	DenialKeys int

	// Leases lets this process fetch tokens of a busy key in advance and spend them
	// without asking. The strategy must be a [Leaser]. It trades some fairness for
	// speed: what one process has fetched, another is denied.
	Leases bool

	// LeaseTTL is how long tokens may be set aside, and so how long those of a process
	// that died are missed. Zero: a second.
	LeaseTTL time.Duration
}

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New], once, and share it; it is safe for concurrent use, and holds no connection
// and no goroutine while idle. [Limiter.Close] it before its pool.
type Limiter struct {
	db       DB
	strategy Strategy
	config   Config
	decide   decide
	counters counters
	waiting  crowd
	closed   atomic.Bool

	// Stages that have a state; nil: switched off.
	memory   *memory
	leases   *leases
	combiner *combiner
}

// New makes a limiter that decides with the strategy, on the database. It does
// not connect. The error is a [*ConfigError], unless db or strategy is nil.
//
// On a single connection or in a transaction (a *pgx.Conn, *pgxpool.Conn or pgx.Tx)
// there is no combining, no memory and no lease: requests go out one by one, as the
// caller sends them, and what is rolled back must not be remembered.
func New(db DB, strategy Strategy, config Config) (*Limiter, error) {
	if value := reflect.ValueOf(db); db == nil || value.Kind() == reflect.Pointer && value.IsNil() {
		return nil, errors.New("pglimit: New needs a database, such as a *pgxpool.Pool")
	}
	if strategy == nil {
		return nil, errors.New("pglimit: New needs a strategy, such as strategies.TokenBucket{}")
	}
	if err := config.validate(strategy); err != nil {
		return nil, err
	}
	switch db.(type) {
	case pgx.Tx, *pgx.Conn, *pgxpool.Conn:
		if config.Leases {
			return nil, &ConfigError{"Leases", errors.New("is true, which needs a pool: on one connection or in a transaction a lease could be rolled back")}
		}
		config.NoCombining, config.NoMemory = true, true
	}
	l := &Limiter{db: db, strategy: strategy, config: config}
	l.waiting.max = int64(orDefault(config.MaxWaiting, defaultMaxWaiting))
	var err error
	if !config.NoMemory {
		if l.memory, err = newMemory(config, &l.counters); err != nil {
			return nil, &ConfigError{"DenialKeys", err}
		}
	}
	if config.Leases {
		if l.leases, err = newLeases(l); err != nil {
			return nil, &ConfigError{"Leases", err}
		}
	}
	l.decide = l.pipeline()
	return l, nil
}

// Close answers those who wait, gives leases back and ends every goroutine of the
// limiter's. When ctx ends, so does the wait: who waits then gets ErrClosed. Calls after
// Close get ErrClosed too, but for requests that need no round trip. Close the pool after it.
//
// The error says what could not be given back, or is that of ctx.
func (l *Limiter) Close(ctx context.Context) error {
	var err error
	if l.leases != nil {
		err = l.leases.close(ctx)
	}
	l.closed.Store(true)
	if l.combiner != nil {
		err = errors.Join(err, l.combiner.close(ctx))
	}
	return err
}

func (c Config) validate(strategy Strategy) error {
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
	if c.Timeout < 0 {
		return &ConfigError{"Timeout", fmt.Errorf("is %v: it must not be negative; 0 means none", c.Timeout)}
	}
	if c.Durability != Relaxed && c.Durability != Durable {
		return &ConfigError{"Durability", fmt.Errorf("is %d: it must be Relaxed or Durable", int(c.Durability))}
	}
	return c.validateStages(strategy)
}

func (c Config) validateStages(strategy Strategy) error {
	if c.Lanes < 0 || c.Lanes > maxLanes {
		return &ConfigError{"Lanes", fmt.Errorf("is %d: it must be from 1 to %d; 0 means %d", c.Lanes, maxLanes, defaultLanes)}
	}
	if c.MaxWaiting < 0 {
		return &ConfigError{"MaxWaiting", fmt.Errorf("is %d: it must not be negative; 0 means %d", c.MaxWaiting, defaultMaxWaiting)}
	}
	if c.DenialKeys < 0 {
		return &ConfigError{"DenialKeys", fmt.Errorf("is %d: it must not be negative; 0 means %d", c.DenialKeys, defaultDenialKeys)}
	}
	if c.DenialTTL < 0 {
		return &ConfigError{"DenialTTL", fmt.Errorf("is %v: it must not be negative; 0 means %v, and NoMemory none", c.DenialTTL, defaultDenialTTL)}
	}
	if c.LeaseTTL != 0 && (c.LeaseTTL < minLeaseTTL || c.LeaseTTL > maxLeaseTTL) {
		return &ConfigError{"LeaseTTL", fmt.Errorf("is %v: it must be from %v to %v; 0 means %v", c.LeaseTTL, minLeaseTTL, maxLeaseTTL, defaultLeaseTTL)}
	}
	if _, able := strategy.(Leaser); c.Leases && !able {
		return &ConfigError{"Leases", fmt.Errorf("is more than the strategy %s can do: use a Leaser, such as strategies.TokenBucket{}", strategy.Name())}
	}
	return nil
}

// Allow takes one token of the key's bucket, if it is there.
//
// A denial is a Decision, not an error. An error means that no decision is known
// (or what [Config.OnError] made of that), or, as a [*RequestError], that the
// key cannot be one.
func (l *Limiter) Allow(ctx context.Context, key string) (Decision, error) {
	return l.AllowN(ctx, key, 1)
}

// AllowN takes n tokens of the key's bucket, all or none. More than the burst
// could never be granted and is a [*RequestError], as are zero and less.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (Decision, error) {
	if n < 1 {
		return Decision{}, &RequestError{Field: "Tokens", Why: fmt.Sprintf("is %d: it must be at least 1 (to look without taking, use Peek)", n)}
	}
	return l.decide(ctx, l.request(key, n, n))
}

// Peek looks at the key's bucket and takes nothing. Allowed says whether Allow
// would have been granted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.decide(ctx, l.request(key, 0, 1))
}

// Reset fills the key's bucket. Tokens that other processes have set aside (see
// [Config.Leases]) stay theirs: they can be had besides.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	if l.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.config.Timeout)
		defer cancel()
	}
	var err error
	if l.leases != nil {
		err = l.leases.drop(ctx, key)
	}
	if err == nil {
		err = l.strategy.Reset(ctx, l.db, l.config.Name, key)
	}
	if l.memory != nil { // also after an error, which may hide that it was done
		l.memory.forget(key)
	}
	if err != nil {
		return fmt.Errorf("pglimit: reset of %q: %w", key, err)
	}
	return nil
}

// Limit that each key has.
func (l *Limiter) Limit() Limit { return l.config.Limit }

func (l *Limiter) request(key string, tokens, unit int64) Request {
	return Request{
		Limiter:    l.config.Name,
		Key:        key,
		Limit:      l.config.Limit,
		Tokens:     tokens,
		Unit:       unit,
		Durability: l.config.Durability,
	}
}
