package chart

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Number, 0, "0"}, {Number, 0.5, "0.5"}, {Number, 999.9, "1k"}, {Number, 19208, "19.2k"}, {Number, 3.4e6, "3.4M"}, {Number, 0.0111, "0.0111"},
		{Micros, 0.15, "150 ns"}, {Micros, 850, "850 µs"}, {Micros, 1234, "1.23 ms"}, {Micros, 3e6, "3 s"},
		{Seconds, 0.25, "250 ms"}, {Seconds, 90, "90 s"}, {Seconds, 120, "2 min"}, {Seconds, 600, "10 min"},
		{Bytes, 158, "158 B"}, {Bytes, 1480, "1.48 kB"}, {Bytes, 2e6, "2 MB"},
		{Percent, 0, "0 %"}, {Percent, 99.99, "99.99 %"}, {Percent, 99.9999, "99.999 %"}, {Percent, 100, "100 %"}, {Percent, 12.345, "12.3 %"},
		{Number, -1500, "-1.5k"}, {Number, 1e15, "1e+06G"},
	} {
		if got := strings.ReplaceAll(c.unit.Text(c.v), "\u00a0", " "); got != c.want {
			t.Errorf("unit %d writes %v as %q, want %q", c.unit, c.v, got, c.want)
		}
	}
}

// Ticks rise, are few, and the numbers lie between the ends of the axis.
func TestTicks(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		low := math.Exp(random.Float64()*40 - 20)
		high := low * math.Exp(random.Float64()*random.Float64()*30)
		for _, scale := range []Scale{Linear, Log} {
			unit := Unit(random.IntN(5))
			s := newSpan(scale, unit, []float64{low, high}, nil)
			s.from, s.to = 0, 100
			if len(s.ticks) < 2 || len(s.ticks) > 12 || !slices.IsSorted(s.ticks) {
				t.Fatalf("%v to %v on scale %d, unit %d: the ticks are %v", low, high, scale, unit, s.ticks)
			}
			for _, v := range append(slices.Clone(s.ticks), low, high) {
				if at := s.at(v); !(at > -0.1 && at < 100.1) {
					t.Fatalf("%v to %v on scale %d, unit %d: %v is at %v, ticks %v", low, high, scale, unit, v, at, s.ticks)
				}
			}
		}
	}
}
