package pglimit

import (
	"reflect"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

type (
	// Limit is Tokens per Period, at most Burst at once: see [rate.Limit] for its fields and
	// methods. PerSecond, PerMinute, PerHour, Per, Every and ParseLimit make one.
	Limit = rate.Limit

	// Decision is the answer to a request: Allowed, Granted, Remaining, RetryAfter,
	// ResetAfter, Delay, Blocked, BlockedFor, Contended, At, Source, Limiter, Key and Limit, which
	// [rate.Decision] explains.
	Decision = rate.Decision

	// Source of a Decision: FromDatabase, FromMemory, FromLease or FromFallback.
	Source = rate.Source

	// Request asks for tokens of a bucket: see [rate.Request].
	Request = rate.Request

	// Durability of a grant, Relaxed or Durable: see [rate.Durability].
	Durability = rate.Durability

	// Pool is what [New] needs: a *pgxpool.Pool, or a type that embeds one.
	Pool = postgres.Pool

	// Tx is what [InTx] needs: a pgx.Tx, or a type that embeds one.
	Tx = postgres.Tx

	// SQLTx is what [InSQLTx] needs: a *sql.Tx, or a type that embeds one.
	SQLTx = postgres.SQLTx

	// RuleError says why a rule of the table pglimit.limits cannot be kept. It names the row.
	RuleError = rate.RuleError
	// LimitError says why a Limit cannot be kept. It names the field.
	LimitError = rate.LimitError

	// RequestError says why a Request is not valid. It names the field.
	RequestError = rate.RequestError

	// Block says when a key that is denied again and again is blocked, and for how long: see
	// [rate.Block].
	Block = rate.Block

	// LimitRule is a row of the table pglimit.limits: see [rate.LimitRule] and [Limits].
	LimitRule = rate.LimitRule

	// Action of a LimitRule: Enforce, Observe, Allow, Deny or Off, see [rate.Action].
	Action = rate.Action

	// BlockError says why a Block is not valid. It names the field.
	BlockError = rate.BlockError
)

// The types that authors of strategies need, each explained in package rate: the strategy, and
// the interfaces of what else it may be able to do.
type (
	Strategy     = rate.Strategy
	Rule         = rate.Rule
	Session      = rate.Session
	GiveBacker   = rate.GiveBacker
	Refund       = rate.Refund
	Resetter     = rate.Resetter
	AllResetter  = rate.AllResetter
	Sweeper      = rate.Sweeper
	Cursor       = rate.Cursor
	Swept        = rate.Swept
	Leaser       = rate.Leaser
	LeaseRequest = rate.LeaseRequest
	Lease        = rate.Lease
	Bucket       = rate.Bucket
	HeldError    = rate.HeldError
)

// The constants of the vocabulary, each explained in package rate.
const (
	Relaxed         = rate.Relaxed
	Durable         = rate.Durable
	FromDatabase    = rate.FromDatabase
	FromMemory      = rate.FromMemory
	FromLease       = rate.FromLease
	FromFallback    = rate.FromFallback
	FromRule        = rate.FromRule
	FromAdjust      = rate.FromAdjust
	FromNewKeys     = rate.FromNewKeys
	Enforce         = rate.Enforce
	Observe         = rate.Observe
	Allow           = rate.Allow
	Deny            = rate.Deny
	Off             = rate.Off
	Places          = rate.Places
	MaxRate         = rate.MaxRate
	MaxWindow       = rate.MaxWindow
	MaxKeyBytes     = rate.MaxKeyBytes
	MaxLimiterBytes = rate.MaxLimiterBytes
	MaxIDBytes      = rate.MaxIDBytes
	MinIDTTL        = rate.MinIDTTL
	MaxIDTTL        = rate.MaxIDTTL
	MaxBlock        = rate.MaxBlock
)

// The errors of a Limiter, to be tested with errors.Is.
var (
	// ErrUnavailable: Postgres cannot be reached, did not answer within Config.Timeout, or
	// refuses for reasons of its own. The call may have taken its tokens or not.
	ErrUnavailable = rate.ErrUnavailable

	// ErrReadOnly: the server is a standby, or default_transaction_read_only is on. It is an
	// ErrUnavailable, and nothing was taken.
	ErrReadOnly = rate.ErrReadOnly

	// ErrNotMigrated: the schema pglimit, or a part of it that the strategy needs, is missing.
	ErrNotMigrated = rate.ErrNotMigrated

	// ErrPermission: the database role may not do what the strategy does, or may not log in.
	ErrPermission = rate.ErrPermission

	// ErrSetting: a setting of the connection, the role or the database, or a certificate, is in the way.
	ErrSetting = rate.ErrSetting

	// ErrPooler: a pooler such as PgBouncer has mixed up prepared statements.
	ErrPooler = rate.ErrPooler

	// ErrOverloaded: as many callers as Config.MaxWaiting allows are already waiting.
	ErrOverloaded = rate.ErrOverloaded

	// ErrClosed: the Limiter was closed.
	ErrClosed = rate.ErrClosed

	// ErrNothingTaken: Postgres refused the call, and so took nothing.
	ErrNothingTaken = rate.ErrNothingTaken

	// ErrLocked: somebody else holds the bucket's row locked. Nothing was taken.
	ErrLocked = rate.ErrLocked
)

// PerSecond is a Limit of n tokens per second with a Burst of n.
func PerSecond(n int64) Limit { return rate.PerSecond(n) }

// PerMinute is a Limit of n tokens per minute with a Burst of n.
func PerMinute(n int64) Limit { return rate.PerMinute(n) }

// PerHour is a Limit of n tokens per hour with a Burst of n.
func PerHour(n int64) Limit { return rate.PerHour(n) }

// PerDay is a Limit of n tokens per 24 hours with a Burst of n; PerDay(n).Fixed() counts by the day of the calendar.
func PerDay(n int64) Limit { return rate.PerDay(n) }

// PerMonth is a Limit of n tokens per month of the calendar, in UTC: see [rate.Limit.In] and [rate.Limit.From].
func PerMonth(n int64) Limit { return rate.PerMonth(n) }

// PerYear is a Limit of n tokens per year of the calendar, in UTC: see [rate.Limit.In].
func PerYear(n int64) Limit { return rate.PerYear(n) }

// Per is a Limit of n tokens per period with a Burst of n: Per(1000, 24*time.Hour).
func Per(n int64, period time.Duration) Limit { return rate.Per(n, period) }

// Every is a Limit of one token per d with a Burst of 1: two grants are at least d apart.
func Every(d time.Duration) Limit { return rate.Every(d) }

// ParseLimit reads a limit as people write it, such as "100/1m burst 20": see [rate.ParseLimit].
func ParseLimit(text string) (Limit, error) { return rate.ParseLimit(text) }

// ParseDurability reads "relaxed" or "durable".
func ParseDurability(text string) (Durability, error) { return rate.ParseDurability(text) }

// isNil says whether value is nil or a nil pointer.
func isNil(value any) bool {
	v := reflect.ValueOf(value)
	return value == nil || v.Kind() == reflect.Pointer && v.IsNil()
}
