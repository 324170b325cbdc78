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

// newSpan around the figures, of which at least one can be drawn. exact ends where they end; otherwise at the next
// tick.
func newSpan(scale Scale, figures []float64, exact bool) span {
	s := span{scale: scale, low: math.Inf(1), high: math.Inf(-1)}
	for _, f := range figures {
		if known(scale.measure(f)) {
			s.low, s.high = math.Min(s.low, f), math.Max(s.high, f)
		}
	}
	if scale == Linear || scale == Time {
		s.low, s.high = math.Min(0, s.low), math.Max(s.high, 1e-9)
	}
	ticks := scale.ticks(s.low, s.high)
	first, last := ticks[0], ticks[len(ticks)-1]
	for _, tick := range ticks {
		if tick <= s.low {
			first = tick
		}
		if tick >= s.high {
			last = math.Min(last, tick)
		}
	}
	if !exact {
		s.low, s.high = first, last
	}
	for _, tick := range ticks {
		if tick >= s.low && tick <= s.high*(1+1e-9) {
			s.ticks = append(s.ticks, tick)
		}
	}
	return s
}

// ticks from one that is not above low to one that is not below high, and perhaps beyond.
func (s Scale) ticks(low, high float64) (ticks []float64) {
	switch s {
	case Nines:
		return []float64{50, 90, 99, 99.9, 99.99}
	case Log:
		for _, factors := range [][]float64{{1, 2, 5}, {1}} { // powers of ten, where there would be too many
			ticks = nil
			for power := math.Floor(math.Log10(low)); power <= math.Ceil(math.Log10(high)); power++ {
				for _, factor := range factors {
					ticks = append(ticks, factor*math.Pow(10, power))
				}
			}
			if len(ticks) <= 9 {
				break
			}
		}
		return ticks
	}
	step := step(s, (high-low)/4)
	for tick := math.Floor(low/step) * step; tick < high+step; tick += step {
		ticks = append(ticks, tick)
	}
	return ticks
}

// step between ticks: the least round one that is not below the given.
func step(scale Scale, least float64) float64 {
	if scale == Time {
		for _, step := range []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800} {
			if step >= 0.8*least && least > 0.5 {
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

// at is the place of a figure. NaN: it has none.
func (s span) at(figure float64) float64 {
	low, high := s.scale.measure(s.low), s.scale.measure(s.high)
	if low == high {
		return (s.from + s.to) / 2
	}
	return s.from + (s.scale.measure(figure)-low)/(high-low)*(s.to-s.from)
}
