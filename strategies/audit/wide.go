package audit

import (
	"math"
	"math/bits"
)

// wide is an unsigned integer of 128 bits. It stops at its bounds instead of wrapping
// around.
//
// The verdicts are exact all the same. A debt that has reached the upper bound stays far
// above every capacity: a capacity is less than 2^126, and the longest time between two
// int64 pays back less than 2^64.
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

// divided is a / b rounded down, at most the largest int64, and whether there is a remainder.
func (a wide) divided(b uint64) (quotient int64, rest bool) {
	if a.hi >= b {
		return math.MaxInt64, true
	}
	q, r := bits.Div64(a.hi, a.lo, b)
	return int64(min(q, math.MaxInt64)), r > 0
}
