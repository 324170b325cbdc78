package chart

import "math"

// Scale of an axis.
type Scale int

// The scales.
const (
	Linear     Scale = iota // from 0, or from the least number if that is below it
	Log                     // by powers of ten; 0 and less cannot be drawn
	Percentile              // 0, 50, 90, 99, 99.9, 99.99: every step is ten times as rare
)

// span is an axis as it is drawn: numbers from low to high lie between two places.
type span struct {
	scale     Scale
	low, high float64
	from, to  float64 // places
	ticks     []float64
}

// newSpan around the values. limits get some room above them for their label.
func newSpan(scale Scale, unit Unit, values, limits []float64) span {
	s := span{scale: scale, low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range append(append([]float64(nil), values...), limits...) {
		if s.takes(v) {
			s.low, s.high = math.Min(s.low, v), math.Max(s.high, v)
		}
	}
	if s.low > s.high {
		s.low, s.high = 1, 1
	}
	switch scale {
	case Percentile:
		s.low, s.high = 0, 99.99
		s.ticks = []float64{0, 50, 90, 99, 99.9, 99.99}
	case Log:
		s.logTicks()
	default:
		s.linearTicks(unit, limits)
	}
	return s
}

// takes says whether a number has a place on the scale.
func (s span) takes(v float64) bool {
	switch {
	case !drawable(v):
		return false
	case s.scale == Log:
		return v > 1e-100
	case s.scale == Percentile:
		return v >= 0 && v <= 99.99+1e-9
	}
	return true
}

// at is the place of a number.
func (s span) at(v float64) float64 {
	low, high := s.measure(s.low), s.measure(s.high)
	return s.from + (s.measure(v)-low)/(high-low)*(s.to-s.from)
}

func (s span) measure(v float64) float64 {
	switch s.scale {
	case Log:
		return math.Log10(v)
	case Percentile:
		return -math.Log10(1 - v/100)
	}
	return v
}

func (s *span) linearTicks(unit Unit, limits []float64) {
	s.low = math.Min(0, s.low)
	if unit == Percent && s.high > 40 && s.high < 100 {
		s.high = 100
	}
	if s.high <= s.low {
		s.high = s.low + 1
	}
	step := niceStep((s.high-s.low)/5, unit)
	if unit == Percent && s.high == 100 {
		step = 25
	}
	s.low = math.Floor(s.low/step+1e-9) * step
	if unit != Seconds { // time ends where it ends
		s.high = math.Ceil(s.high/step-1e-9) * step
	}
	for _, limit := range limits {
		if s.takes(limit) && limit > s.low+0.88*(s.high-s.low) {
			s.high += step
		}
	}
	for i := 0; ; i++ {
		tick := s.low + float64(i)*step
		if tick > s.high+step/1e6 || i > 20 {
			return
		}
		s.ticks = append(s.ticks, tick)
	}
}

// niceStep is the least step that people count in, and that is not below the given one.
func niceStep(least float64, unit Unit) float64 {
	if unit == Seconds && least > 5 {
		for _, step := range []float64{10, 15, 30, 60, 120, 300, 600, 1200, 3600} {
			if step >= least {
				return step
			}
		}
	}
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, factor := range []float64{1, 2, 5} {
		if factor*power >= least*0.999 {
			return factor * power
		}
	}
	return 10 * power
}

func (s *span) logTicks() {
	low, high := math.Floor(math.Log10(s.low)), math.Ceil(math.Log10(s.high))
	factors := []float64{1}
	switch {
	case s.high < 3*s.low:
		factors = []float64{1, 1.5, 2, 3, 5, 7}
		low, high = low-1, high+1 // room to choose from
	case high-low <= 2:
		factors = []float64{1, 2, 5}
	}
	every := math.Max(1, math.Ceil((high-low)/6))
	var ticks []float64
	for power := low; power <= high; power += every {
		for _, factor := range factors {
			ticks = append(ticks, factor*math.Pow(10, power))
		}
	}
	// The frame begins at the last tick that is not above the numbers, and ends at the
	// first one that is not below them.
	first, last := 0, len(ticks)-1
	for first+1 < len(ticks) && ticks[first+1] <= s.low {
		first++
	}
	for last-1 > first && ticks[last-1] >= s.high {
		last--
	}
	// Noise must not fill the frame.
	for least := min(3, len(factors)); last-first+1 < least; {
		if last+1 < len(ticks) {
			last++
		} else {
			first--
		}
	}
	s.ticks = ticks[first : last+1]
	s.low, s.high = s.ticks[0], math.Max(s.high, s.ticks[len(s.ticks)-1])
	if s.low == s.high {
		s.high = s.low * 10
		s.ticks = []float64{s.low, s.high}
	}
}
