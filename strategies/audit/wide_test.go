package audit

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func (a wide) big() *big.Int {
	x := new(big.Int).SetUint64(a.hi)
	return x.Add(x.Lsh(x, 64), new(big.Int).SetUint64(a.lo))
}

var (
	zero    = new(big.Int)
	largest = wide{math.MaxUint64, math.MaxUint64}.big()
)

// clamped is x within the bounds of a wide.
func clamped(x *big.Int) *big.Int {
	switch {
	case x.Sign() < 0:
		return zero
	case x.Cmp(largest) > 0:
		return largest
	}
	return x
}

func TestWideAgreesWithBig(t *testing.T) {
	t.Parallel()
	word := rapid.OneOf(rapid.Uint64(), rapid.SampledFrom([]uint64{0, 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64}))
	rapid.Check(t, func(t *rapid.T) {
		a := wide{word.Draw(t, "a.hi"), word.Draw(t, "a.lo")}
		b := wide{word.Draw(t, "b.hi"), word.Draw(t, "b.lo")}
		x, y := a.big(), b.big()
		if got, want := a.plus(b).big(), clamped(new(big.Int).Add(x, y)); got.Cmp(want) != 0 {
			t.Errorf("%v + %v = %v, not %v", x, y, got, want)
		}
		if got, want := a.minus(b).big(), clamped(new(big.Int).Sub(x, y)); got.Cmp(want) != 0 {
			t.Errorf("%v - %v = %v, not %v", x, y, got, want)
		}
		if got, want := a.less(b), x.Cmp(y) < 0; got != want {
			t.Errorf("%v < %v: %t", x, y, got)
		}
		if got, want := a.isZero(), x.Sign() == 0; got != want {
			t.Errorf("%v is zero: %t", x, got)
		}
		p, q := new(big.Int).SetUint64(a.lo), new(big.Int).SetUint64(b.lo)
		if got, want := product(a.lo, b.lo).big(), new(big.Int).Mul(p, q); got.Cmp(want) != 0 {
			t.Errorf("%v × %v = %v, not %v", p, q, got, want)
		}
		if b.lo == 0 {
			return
		}
		want, remainder := new(big.Int).QuoRem(x, q, new(big.Int))
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
		}
		got, rest := a.divided(b.lo)
		if got != want.Int64() {
			t.Errorf("%v / %v = %d, not %v", x, q, got, want)
		}
		if got < math.MaxInt64 && rest != (remainder.Sign() > 0) {
			t.Errorf("%v / %v: there is a rest: %t", x, q, rest)
		}
	})
}
