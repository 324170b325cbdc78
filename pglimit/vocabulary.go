package pglimit

import (
	"reflect"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// The words of package rate, which explains each: what is asked, what is answered, and what a value that cannot be
// kept is.
type (
	Limit        = rate.Limit
	Decision     = rate.Decision
	Source       = rate.Source
	Durability   = rate.Durability
	Block        = rate.Block
	LimitRule    = rate.LimitRule
	Action       = rate.Action
	RuleError    = rate.RuleError
	LimitError   = rate.LimitError
	RequestError = rate.RequestError
	BlockError   = rate.BlockError
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
	Pauser       = rate.Pauser
	Sweeper      = rate.Sweeper
	Cursor       = rate.Cursor
	Swept        = rate.Swept
	Leaser       = rate.Leaser
	LeaseRequest = rate.LeaseRequest
	Lease        = rate.Lease
	Bucket       = rate.Bucket
	HeldError    = rate.HeldError
)

// What is handed in: a *pgxpool.Pool for [New], a pgx.Tx for [InTx], a *sql.Tx for [InSQLTx], or a type that embeds
// one.
type (
	Pool  = postgres.Pool
	Tx    = postgres.Tx
	SQLTx = postgres.SQLTx
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
	ActionEnforce   = rate.ActionEnforce
	ActionObserve   = rate.ActionObserve
	ActionAllow     = rate.ActionAllow
	ActionDeny      = rate.ActionDeny
	ActionOff       = rate.ActionOff
	ActionPlaces    = rate.ActionPlaces
	MaxRate         = rate.MaxRate
	MaxWindow       = rate.MaxWindow
	MaxKeyBytes     = rate.MaxKeyBytes
	MaxLimiterBytes = rate.MaxLimiterBytes
	MaxIDBytes      = rate.MaxIDBytes
	MinIDTTL        = rate.MinIDTTL
	MaxIDTTL        = rate.MaxIDTTL
	MaxBlock        = rate.MaxBlock
)

// The errors of a Limiter, to be tested with errors.Is, each explained in package rate.
var (
	ErrUnavailable  = rate.ErrUnavailable
	ErrReadOnly     = rate.ErrReadOnly
	ErrNotMigrated  = rate.ErrNotMigrated
	ErrPermission   = rate.ErrPermission
	ErrSetting      = rate.ErrSetting
	ErrPooler       = rate.ErrPooler
	ErrOverloaded   = rate.ErrOverloaded
	ErrClosed       = rate.ErrClosed
	ErrNothingTaken = rate.ErrNothingTaken
	ErrLocked       = rate.ErrLocked
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
