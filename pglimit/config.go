package pglimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/combine"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Config of a [Limiter]. Name and Limit are required. The zero value of every
// other field means its default.
type Config struct {
	// Name of the limiter, unless a request has its own. Limiters with the same name and strategy share their
	// buckets, across processes; others do not. At most MaxLimiterBytes long.
	Name string

	// Limit of each key, unless a request has its own. When a new release or SetLimit changes
	// it, the tokens that a key has used stay used, and come back at the faster of both rates.
	// Requests under both limits are granted together what the looser limit would grant, and on top of
	// that what was reserved ahead under the slower one (Wait, Reserve): it keeps its promised times.
	Limit Limit

	// Timeout of one decision, Refund or Reset, from the call to the answer. Zero: a second.
	// NoTimeout: only the deadline of the context.
	Timeout time.Duration

	// Durability of grants. Zero: Relaxed. In a transaction of the caller's (see [Limiter.On]) the
	// transaction's own synchronous_commit counts.
	Durability Durability

	// OnError answers the caller when no decision is known: Postgres cannot be reached, is
	// too slow, or refuses. Nil: the error is returned. See [FailOpen], [FailClosed] and
	// [FailLocal].
	//
	// For a group of DoAll it is called for each request in order, and the group is granted if
	// all are.
	//
	// It is not called for an invalid request, when the caller cancelled or the Limiter is closed, nor by Reset and
	// ResetAll. Nor for [ErrNotMigrated], [ErrPermission], [ErrSetting], [ErrPooler], and the [LimitError] of a time
	// zone that Postgres does not know, nor for a [RuleError]: these do not end by themselves, as an outage does, and
	// a limiter that fails open would let everybody pass for ever, unseen.
	OnError func(ctx context.Context, failed Failure) (Decision, error)

	// OnDecision is told what each caller is told, just before: a request with its decision, or
	// with the error that it fails with. For logs and audits; to count, [Limiter.Stats] is
	// enough and costs less. Of a group it is told each request. Of a Wait, it is told the Delay
	// before it, and not if the caller gives up meanwhile.
	//
	// The caller waits for it, also after a denial from memory, which takes some 150 ns without
	// it. It is called concurrently, and not for an invalid request. Nil costs nothing.
	OnDecision func(ctx context.Context, request Request, decision Decision, err error)

	// OnRoundTrip is told of each call of the strategy, after it, for histograms and traces. The
	// adapters promlimit and otellimit have histograms without it. It is not told of calls that an
	// open breaker refuses.
	//
	// The callers that the call served wait for it. It is called concurrently, and must not
	// panic. The context is that of the call: with Combine, it has the values of the first
	// caller in line. Nil costs nothing.
	OnRoundTrip func(ctx context.Context, trip RoundTrip)

	// Logger gets the failures: requests of which no decision is known, whatever OnError
	// answers. (What a Refund, Settle or Reset returns is not logged.) It gets the first of each
	// [Cause] at once, then their number, at most every ten seconds. It also hears when the Breaker
	// opens and closes. Nil: nothing is logged.
	Logger *slog.Logger

	// LogKeys adds the key to the failures that are logged. A key may be somebody's name:
	// without LogKeys, it is logged only if an error of Postgres's quotes it.
	LogKeys bool

	// MaxWaiting is how many callers may wait for an answer of Postgres's at once. One more gets
	// ErrOverloaded. Each request that a DoEach sends counts as one; callers of Wait whose tokens are
	// still to come do not count. Zero: 65,536.
	MaxWaiting int

	// MaxWait is how long a Wait may take, if the deadline of its context is later or there is none.
	// Zero: no bound but that deadline.
	MaxWait time.Duration

	// MaxAhead is how long ahead of their time Reserve may take tokens. Zero: as long as an empty
	// bucket takes to fill.
	MaxAhead time.Duration

	// IDTTL is how long the grant of a request with an ID is kept, see [Limiter.Do]: a request
	// that is sent again within this time is not charged again. From MinIDTTL to MaxIDTTL, a
	// millisecond to a day. Make it longer than all tries of a request take. Zero: a minute.
	IDTTL time.Duration

	// Block keys that are denied too often: see [Block]. All Limiters of this Name should have the
	// same. The zero Block blocks nobody. The strategy must know blocks, as TokenBucket
	// does, and Leases must be off. Block.For must not be shorter than a token of the Limit takes to come back: an
	// empty bucket denies the key for as long anyway.
	//
	// Each request is then a round trip of its own, because Postgres counts the denials, and must be all or nothing,
	// without Ahead or ID; so DoAll, Wait, Reserve, and a Settle that would charge more, are errors that satisfy
	// errors.Is(err, [errors.ErrUnsupported]) and say what to do instead. The memory of denials knows only of blocks.
	// Peek says whether the key is blocked; Reset ends its block. A denial in a transaction counts if that commits.
	Block Block

	// Limits are the rules of the table pglimit.limits, which operators change while services run: see [LimitsFrom].
	// A rule for a key, or for the keys that begin with a prefix, comes before a request's own Limit, that before a
	// rule for all keys, and Limit holds where there is none. Requests under a rule that cannot be read or kept get a
	// [RuleError]. Nil: the table is not read.
	Limits *Limits

	// Adjust returns the share of each limit that holds now, from 0 to 1, so that the limits yield to the state of
	// the system: of its own limit, of a request's and of a rule's. A share of 0.3 is 30 % of the rate and of the
	// burst (which is one token at least). It is rounded down to a whole percent, and 0 denies everything. What can
	// never be granted by a share is denied [FromAdjust], without asking Postgres. What rules allow is granted, and
	// tokens that are reserved keep their time.
	//
	// A goroutine of the Limiter's asks it every 100 ms, one call at a time, and New waits for the first answer, for
	// 100 ms at most. If it panics, takes longer than a second or returns anything else, the share of before holds,
	// or, where there was none, all of the limit; this is counted, see [Stats], and logged when it begins and ends.
	// Nil costs nothing.
	//
	// It is for this process only. Where others take from the same bucket, their limit counts too: all together grant
	// what the looser one would.
	Adjust func() float64

	// NewKeys bounds how many rows this Limiter's requests make, for keys that a client can make up: see [NewKeys]. A
	// key that had a row when it was asked for is never refused by it. (A request with an ID that is sent again may
	// be, if the row was swept meanwhile.)
	//
	// A key that this process has not seen for some 50 s costs a round trip more, which looks whether it has a row,
	// and a new one another, for a token. The new keys of a group get their tokens all or nothing: more of them than
	// NewKeys.Limit.Burst are always refused. Wait does not wait for a token of NewKeys.Limit: it fails with
	// [ErrTooManyNewKeys]. Requests of [Limiter.On] are not bounded, nor is what SQL takes. The zero NewKeys costs
	// nothing.
	NewKeys NewKeys

	// Nodes are the nodes of a Citus cluster, which are asked for their keys straight: see [NodesFrom]. The Limiter's
	// own pool is one of the coordinator. It is for strategies.TokenBucket. Nil: all goes through the Limiter's pool.
	Nodes *Nodes

	// Top counts which keys are denied and granted most: see [TopFrom]. Nil: nothing is counted.
	Top *Top

	// The stages between the callers and Postgres.
	Combine Combine
	Memory  Memory
	Leases  Leases
	Breaker Breaker
}

// RoundTrip is one call of the strategy, which [Config].OnRoundTrip gets. It may have served
// many callers.
type RoundTrip struct {
	Limiter, Strategy string // names

	// Operation is "take", "take_groups" (of DoAll), "take_once" (with an ID), "take_or_block",
	// "lease", "give_back", "reset" or "reset_all".
	Operation string

	// Requests is how many requests a take sent: identical requests of several callers count
	// as one. Of any other operation it is 0.
	Requests int

	// Duration from the call to the answer, with the time that it waited for a connection of
	// the pool.
	Duration time.Duration

	// Outcome is "ok" if the call succeeded; "canceled" if nobody waited for the answer any more,
	// because the callers cancelled or (of a combined call) ran out of time; else the [Cause], such as
	// "unavailable".
	Outcome string

	Err error // nil if the call succeeded
}

// Combine configures the stage that sends requests together if they arrive while a call is
// under way. It is on unless Off. A request that arrives while none is goes out at once, in a call
// that ends with its caller's context.
type Combine struct {
	// Off sends each request by itself, except those of one DoEach.
	Off bool

	// Lanes is how many lanes the keys are spread over. A lane has at most one call under way, on one connection. Two
	// keep a near server with few cores busy; for a far server, or one with many cores, more can be faster. At most
	// two more connections wait for rows that somebody else holds locked. The groups of DoAll have a lane of their
	// own, and two such connections. Requests of a DoEach that cannot be combined use as many connections. Zero: 2.
	// On tables that Citus distributes there are at least 32, which is best if there are 32 shards, or 16, 8 and so
	// on.
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

	// Keys is how many keys are remembered at most. Each takes about 320 bytes plus the
	// key. Zero: 65,536.
	Keys int
}

// Leases configures the stage that fetches tokens of a busy key in advance and spends them
// without asking Postgres. It is off unless On.
type Leases struct {
	// On trades some fairness for speed: tokens that one process has fetched are denied to
	// the others. The strategy must be a [Leaser].
	//
	// A request that has to ask Postgres, because it is a group, has an ID, waits, or has another
	// limit than the lease, gives the lease back first: a key with many of these is not leased.
	On bool

	// TTL is how long a lease lasts at most. If a process dies, its tokens count as spent
	// after that time. From 10 ms to 10 s. Zero: a second.
	TTL time.Duration
}

// Breaker configures the circuit breaker. It is on unless Off.
//
// It opens when a call failed as unavailable, or had no answer for half of Config.Timeout (at least 50 ms), and
// then a new connection got no sign of life in the other half (at least 200 ms), and no other call
// an answer meanwhile. A server that answers and is read-only gives none. Then all requests
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

	defaultIDTTL = time.Minute

	defaultDenialTTL  = time.Second
	defaultDenialKeys = 1 << 16

	defaultLeaseTTL = time.Second
	minLeaseTTL     = 10 * time.Millisecond
	maxLeaseTTL     = 10 * time.Second
)

// setDefaults fills in what is left out, but for the Timeout: on a session of the caller's it has another
// default.
func (c *Config) setDefaults() {
	c.MaxWaiting = orDefault(c.MaxWaiting, defaultMaxWaiting)
	c.IDTTL = orDefault(c.IDTTL, defaultIDTTL)
	if c.Nodes != nil {
		c.Combine.Lanes = orDefault(c.Combine.Lanes, combine.ShardLanes)
	}
	c.Combine.Lanes = orDefault(c.Combine.Lanes, defaultLanes)
	c.Memory.TTL = orDefault(c.Memory.TTL, defaultDenialTTL)
	c.Memory.Keys = orDefault(c.Memory.Keys, defaultDenialKeys)
	c.Leases.TTL = orDefault(c.Leases.TTL, defaultLeaseTTL)
	if c.NewKeys.Limit != (Limit{}) { // else Keys alone would be an error in the next Limiter that is made with this
		c.NewKeys.Keys = orDefault(c.NewKeys.Keys, defaultDenialKeys)
	}
}

func orDefault[T int | time.Duration](value, otherwise T) T {
	if value == 0 {
		return otherwise
	}
	return value
}

// Validate returns nil if a limiter with the strategy can have this configuration, else a
// [*ConfigError], unless the strategy or its Rule is nil. [New] calls it too.
func (c Config) Validate(strategy Strategy) error {
	if strategy == nil {
		return errNoStrategy
	}
	if strategy.Rule() == nil {
		return fmt.Errorf("pglimit: Rule of the strategy %s is nil: a token bucket returns strategies.TokenBucket{}.Rule()", strategy.Name())
	}
	if err := cmp.Or(rate.CheckLimiter(c.Name), checkName(c.Name)); err != nil {
		var request *RequestError
		errors.As(err, &request)
		return &ConfigError{"Name", errors.New(request.Why)}
	}
	if err := checkLimit(strategy, c.Limit); err != nil {
		return &ConfigError{"Limit", err}
	}
	if c.Timeout < 0 && c.Timeout != NoTimeout {
		return &ConfigError{"Timeout", fmt.Errorf("is %v: it must be positive; 0 means %v, and NoTimeout none", c.Timeout, defaultTimeout)}
	}
	if longest := MaxWindow - c.Limit.Window(); c.MaxWait < 0 || c.MaxWait > longest {
		return &ConfigError{"MaxWait", fmt.Errorf("is %v: it must be from 0 to %v with this limit", c.MaxWait, longest)}
	} else if c.MaxAhead < 0 || c.MaxAhead > longest {
		return &ConfigError{"MaxAhead", fmt.Errorf("is %v: it must be from 0 to %v with this limit", c.MaxAhead, longest)}
	}
	if c.Durability != Relaxed && c.Durability != Durable {
		return &ConfigError{"Durability", fmt.Errorf("is %d: it must be Relaxed or Durable", int(c.Durability))}
	}
	if c.IDTTL != 0 && (c.IDTTL < MinIDTTL || c.IDTTL > MaxIDTTL) {
		return &ConfigError{"IDTTL", fmt.Errorf("is %v: it must be from %v to %v; 0 means %v", c.IDTTL, MinIDTTL, MaxIDTTL, defaultIDTTL)}
	}
	if err := c.Limits.validate(); err != nil {
		return err
	}
	if c.Top != nil {
		if err := c.Top.top.Validate(); err != nil {
			return &ConfigError{"Top", err}
		}
	}
	if err := c.validateBlock(strategy); err != nil {
		return err
	}
	if err := c.validateNewKeys(strategy); err != nil {
		return err
	}
	if err := c.Nodes.validate(strategy); err != nil {
		return err
	}
	return c.validateStages(strategy)
}

// checkLimit returns nil if the limit is valid and the strategy can keep it, else a *LimitError.
func checkLimit(strategy Strategy, limit Limit) error {
	if err := limit.Validate(); err != nil {
		return err
	}
	return strategy.Check(&rate.Request{Limit: limit})
}

func (c Config) validateBlock(strategy Strategy) error {
	if c.Block == (Block{}) {
		return nil
	}
	if err := c.Block.Validate(); err != nil {
		return &ConfigError{"Block", err}
	}
	if strategy.Check(&rate.Request{Limit: c.Limit, Block: &c.Block}) != nil {
		return &ConfigError{"Block", fmt.Errorf("is more than the strategy %s can do: only token_bucket can: %w", strategy.Name(), errors.ErrUnsupported)}
	}
	if c.Leases.On {
		return &ConfigError{"Leases.On", errors.New("is true: with Config.Block it must be false, because Postgres counts the denials")}
	}
	if err := checkBlock(c.Block, c.Limit); err != nil {
		return &ConfigError{"Block", err}
	}
	return nil
}

// checkBlock returns nil if the block keeps a key out for longer than an empty bucket of the limit does, else a
// *BlockError.
func checkBlock(block Block, limit Limit) error {
	if least := min(limit.Token(), MaxBlock); block != (Block{}) && block.For < least {
		return &BlockError{Block: block, Field: "For", Why: fmt.Sprintf("is %v: it must be at least %v, which a token of %v takes to come back: an empty bucket denies the key for as long anyway", block.For, least, limit)}
	}
	return nil
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
		return &ConfigError{"Leases.On", fmt.Errorf("is more than the strategy %s can do: only token_bucket can", strategy.Name())}
	}
	return nil
}
