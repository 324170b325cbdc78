package model

import (
	"math"
	"math/big"
	"math/bits"
	"time"
)

// Limit is a rate and a burst, counted in nanoseconds.
type Limit struct {
	Token int64 // nanoseconds in which one token comes back: the price of a token
	Burst int64 // tokens in a full bucket
}

// NewLimit is tokens per period, at most burst at once. The price of a token is a whole number
// of nanoseconds, rounded up, so the rate is never exceeded.
func NewLimit(tokens int64, period time.Duration, burst int64) Limit {
	return Limit{Token: dividedUp(big.NewInt(int64(period)), tokens), Burst: burst}
}

// Window is the time in which an empty bucket fills.
func (l Limit) Window() int64 { return times(l.Burst, l.Token) }

// Forever is the latest time and the longest duration: anything beyond it is Forever.
const Forever = math.MaxInt64

// plus is a + b, at most Forever. b must not be negative.
func plus(a, b int64) int64 {
	if a > Forever-b {
		return Forever
	}
	return a + b
}

// times is a × b, at most Forever. Neither may be negative.
func times(a, b int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b)) // most of all that histories compute
	if high > 0 || low > Forever {
		return Forever
	}
	return int64(low)
}

func product(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }

// dividedUp is a / b, rounded up, at most Forever.
func dividedUp(a *big.Int, b int64) int64 {
	quotient, rest := new(big.Int).QuoRem(a, big.NewInt(b), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return atMostForever(quotient)
}

func atMostForever(x *big.Int) int64 {
	if !x.IsInt64() {
		return Forever
	}
	return x.Int64()
}
