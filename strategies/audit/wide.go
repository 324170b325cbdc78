package audit

import (
	"math"
	"math/bits"
)

// wide is an integer of 128 bits, not negative. It stops at its bounds instead of
// wrapping around.
//
// The verdicts are exact all the same. A debt that reached the upper bound is
// owed for good: the longest time that an int64 of microseconds can span pays back
// less than 2^64 × 2^62 parts, and nothing compares a debt to more than 2^62.
type wide struct{ hi, lo uint64 }

func product(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	return wide{hi, lo}
}

func (a wide) isZero() bool { return a.hi|a.lo == 0 }

func (a wide) less(b wide) bool {
	return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo
}

// plus is a + b, at most 2^128 - 1.
func (a wide) plus(b wide) wide {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, carry := bits.Add64(a.hi, b.hi, carry)
	if carry != 0 {
		return wide{math.MaxUint64, math.MaxUint64}
	}
	return wide{hi, lo}
}

// minus is a - b, at least 0.
func (a wide) minus(b wide) wide {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, borrow := bits.Sub64(a.hi, b.hi, borrow)
	if borrow != 0 {
		return wide{}
	}
	return wide{hi, lo}
}

// dividedUp is a / b rounded up, at most the largest int64.
func (a wide) dividedUp(b uint64) int64 {
	if a.hi >= b {
		return math.MaxInt64
	}
	quotient, rest := bits.Div64(a.hi, a.lo, b)
	if quotient >= math.MaxInt64 {
		return math.MaxInt64
	}
	if rest > 0 {
		quotient++
	}
	return int64(quotient)
}
