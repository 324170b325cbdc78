package pglimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Config of a [Limiter]. Name and Limit are required, the zero value of every
// other field is its default.
type Config struct {
	// Name of the limiter. Limiters of one name share their buckets, across
	// processes; limiters of different names do not. At most MaxLimiterBytes.
	Name string

	// Limit for each key. When a new release changes it, what a key has used so
	// far stays used, at most the new burst.
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
}

// Limiter is a named limit over a database: the type most callers want. Make one
// with [New], once, and share it; it is safe for concurrent use and holds no
// connection while idle.
type Limiter struct {
	db       DB
	strategy Strategy
	config   Config
	take     take
}

// New makes a limiter that decides with the strategy, on the database. It does
// not connect. The error is a [*ConfigError], unless db or strategy is nil.
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
	return &Limiter{
		db:       db,
		strategy: strategy,
		config:   config,
		take:     pipeline(db, strategy, config),
	}, nil
}

func (c Config) validate(strategy Strategy) error {
	if err := checkName("Limiter", c.Name, MaxLimiterBytes); err != nil {
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
		return Decision{}, &RequestError{"Tokens", fmt.Sprintf("is %d: it must be at least 1 (to look without taking, use Peek)", n)}
	}
	return l.ask(ctx, l.request(key, n, n))
}

// Peek looks at the key's bucket and takes nothing. Allowed says whether Allow
// would have been granted.
func (l *Limiter) Peek(ctx context.Context, key string) (Decision, error) {
	return l.ask(ctx, l.request(key, 0, 1))
}

// Reset fills the key's bucket.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := checkName("Key", key, MaxKeyBytes); err != nil {
		return err
	}
	if l.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.config.Timeout)
		defer cancel()
	}
	if err := l.strategy.Reset(ctx, l.db, l.config.Name, key); err != nil {
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

func (l *Limiter) ask(ctx context.Context, request Request) (Decision, error) {
	decisions, err := l.take(ctx, []Request{request})
	if err != nil {
		return Decision{}, err
	}
	if len(decisions) != 1 {
		return Decision{}, fmt.Errorf("pglimit: the strategy %s made %d decisions of one request", l.strategy.Name(), len(decisions))
	}
	return decisions[0], nil
}
