package chart

import "math"

// Scale of an axis.
type Scale int

// The scales.
const (
	Linear Scale = iota // from 0
	Time                // from 0 to the last figure, with ticks at 10 s, 30 s, 1 m
	Log                 // 0 and less cannot be drawn
	Nines               // 50, 90, 99, 99.9: each step is ten times as rare. 100 cannot be drawn
)

// measure of a figure along the axis. NaN: it cannot be drawn.
func (s Scale) measure(v float64) float64 {
	switch {
	case s == Log && v <= 0 || s == Nines && (v < 50 || v >= 100):
		return math.NaN()
	case s == Log:
		return math.Log10(v)
	case s == Nines:
		return -math.Log10(1 - v/100)
	}
	return v
}

// span is the part of an axis that a panel shows.
type span struct {
	scale     Scale
	low, high float64   // figures at both ends
	ticks     []float64 // between them
	from, to  float64   // places of both ends
}

// newSpan around the figures. exact ends where they end; otherwise at the next tick.
func newSpan(scale Scale, figures []float64, exact bool) span {
	s := span{scale: scale, low: math.Inf(1), high: math.Inf(-1)}
	for _, f := range figures {
		if known(scale.measure(f)) {
			s.low, s.high = math.Min(s.low, f), math.Max(s.high, f)
		}
	}
	if s.low > s.high {
		s.low, s.high = 1, 1
	}
	var ticks []float64
	switch scale {
	case Linear, Time:
		s.low, s.high = math.Min(0, s.low), math.Max(s.high, 1e-9)
		step := step(scale, (s.high-s.low)/4)
		for tick := math.Floor(s.low/step) * step; tick < s.high+step; tick += step {
			ticks = append(ticks, tick)
		}
	case Log:
		ticks = logTicks(s.low, s.high)
	case Nines:
		s.low, ticks = 50, []float64{50, 90, 99, 99.9, 99.99}
	}
	if !exact {
		first, last := ticks[0], ticks[len(ticks)-1]
		for _, tick := range ticks {
			if tick <= s.low {
				first = tick
			}
			if tick >= s.high {
				last = math.Min(last, tick)
			}
		}
		s.low, s.high = first, last
	}
	for _, tick := range ticks {
		if tick >= s.low && tick <= s.high*(1+1e-9) {
			s.ticks = append(s.ticks, tick)
		}
	}
	return s
}

// step between ticks: the least round one that is not below the given.
func step(scale Scale, least float64) float64 {
	if scale == Time {
		for _, step := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800} {
			if step >= least && least > 0.5 {
				return step
			}
		}
	}
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= least {
			return factor * power
		}
	}
	return 10 * power
}

// logTicks around both figures, at most seven: 1, 2, 5, 10 if they are near each other, else powers of ten.
func logTicks(low, high float64) []float64 {
	for _, factors := range [][]float64{{1, 2, 5}, {1}} {
		var ticks []float64
		for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
			for _, factor := range factors {
				ticks = append(ticks, factor*math.Pow(10, power))
			}
		}
		for len(ticks) > 2 && ticks[1] <= low {
			ticks = ticks[1:]
		}
		for len(ticks) > 2 && ticks[len(ticks)-2] >= high {
			ticks = ticks[:len(ticks)-1]
		}
		if len(ticks) <= 7 || len(factors) == 1 {
			return ticks
		}
	}
	return nil
}

// at is the place of a figure. NaN: it has none.
func (s span) at(figure float64) float64 {
	low, high := s.scale.measure(s.low), s.scale.measure(s.high)
	if low == high {
		return (s.from + s.to) / 2
	}
	return s.from + (s.scale.measure(figure)-low)/(high-low)*(s.to-s.from)
}
