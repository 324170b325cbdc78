package pglimit

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// The vocabulary is the package rate, so that strategies and stages need nothing of this one.
// What a user of a Limiter names is here as well.
type (
	Limit        = rate.Limit        // see [rate.Limit]
	Request      = rate.Request      // see [rate.Request]
	Decision     = rate.Decision     // see [rate.Decision]
	Durability   = rate.Durability   // see [rate.Durability]
	DB           = rate.DB           // see [rate.DB]
	Strategy     = rate.Strategy     // see [rate.Strategy]
	GiveBacker   = rate.GiveBacker   // see [rate.GiveBacker]
	Resetter     = rate.Resetter     // see [rate.Resetter]
	Sweeper      = rate.Sweeper      // see [rate.Sweeper]
	Leaser       = rate.Leaser       // see [rate.Leaser]
	LeaseRequest = rate.LeaseRequest // see [rate.LeaseRequest]
	Lease        = rate.Lease        // see [rate.Lease]
	Refund       = rate.Refund       // see [rate.Refund]
	AllResetter  = rate.AllResetter  // see [rate.AllResetter]
	Cursor       = rate.Cursor       // see [rate.Cursor]
	Swept        = rate.Swept        // see [rate.Swept]
	LimitError   = rate.LimitError   // see [rate.LimitError]
	RequestError = rate.RequestError // see [rate.RequestError]
)

// The constants of the vocabulary, each explained in package rate.
const (
	Relaxed         = rate.Relaxed
	Durable         = rate.Durable
	MaxRate         = rate.MaxRate
	MaxWindow       = rate.MaxWindow
	MaxKeyBytes     = rate.MaxKeyBytes
	MaxLimiterBytes = rate.MaxLimiterBytes
)

// The errors of strategies and stages.
var (
	ErrNotMigrated  = rate.ErrNotMigrated  // see [rate.ErrNotMigrated]
	ErrPermission   = rate.ErrPermission   // see [rate.ErrPermission]
	ErrNothingTaken = rate.ErrNothingTaken // see [rate.ErrNothingTaken]
	ErrLocked       = rate.ErrLocked       // see [rate.ErrLocked]
	ErrUnavailable  = rate.ErrUnavailable  // see [rate.ErrUnavailable]
	ErrOverloaded   = rate.ErrOverloaded   // see [rate.ErrOverloaded]
	ErrClosed       = rate.ErrClosed       // see [rate.ErrClosed]
)

// PerSecond is a Limit of n tokens per second with a Burst of n.
func PerSecond(n int64) Limit { return rate.PerSecond(n) }

// PerMinute is a Limit of n tokens per minute with a Burst of n.
func PerMinute(n int64) Limit { return rate.PerMinute(n) }

// PerHour is a Limit of n tokens per hour with a Burst of n.
func PerHour(n int64) Limit { return rate.PerHour(n) }

// Every is a Limit of one token per d with a Burst of 1: two grants are at least d apart.
func Every(d time.Duration) Limit { return rate.Every(d) }

// ParseLimit reads a limit as people write it, such as "100/1m burst 20": see [rate.ParseLimit].
func ParseLimit(text string) (Limit, error) { return rate.ParseLimit(text) }

// ParseDurability reads "relaxed" or "durable".
func ParseDurability(text string) (Durability, error) { return rate.ParseDurability(text) }
