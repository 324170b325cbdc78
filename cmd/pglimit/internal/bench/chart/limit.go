package chart

import "math"

// limits draws the lines across the picture, with their labels.
func (p *plot) limits(l Lines, x, y span) {
	var lines path
	var taken []box
	seen := l.places(x, y)
	for _, limit := range l.Limits {
		if !y.takes(limit.Y) {
			continue
		}
		at := y.at(limit.Y)
		lines.move(p.Left, at)
		lines.across(p.Right)
		placed, where := p.limitLabel(limit.Label, at, seen, taken)
		p.Limits = append(p.Limits, placed)
		taken = append(taken, where)
	}
	p.LimitLines = lines.String()
}

// box is where a text is.
type box struct{ left, right, top, bottom float64 }

func (b box) has(x, y float64) bool {
	return x >= b.left && x <= b.right && y >= b.top && y <= b.bottom
}

func (b box) meets(c box) bool {
	return b.left < c.right && c.left < b.right && b.top < c.bottom && c.top < b.bottom
}

// limitLabel is above the line and at its right end, or where fewer lines are in its way.
func (p *plot) limitLabel(text string, at float64, lines [][2]float64, taken []box) (best label, where box) {
	long, fewest := wide(text), math.MaxInt
	for _, right := range []float64{p.Right - 2, p.Left + 4 + long, (p.Left + p.Right + long) / 2} {
		for _, base := range []float64{at - 5, at + 16} {
			b := box{right - long, right, base - 12, base + 3}
			if b.left < p.Left || b.top < p.Top-8 || b.bottom > p.Bottom {
				continue
			}
			inWay := 0
			for _, place := range lines {
				if b.has(place[0], place[1]) {
					inWay++
				}
			}
			for _, other := range taken {
				if b.meets(other) {
					inWay += 1000
				}
			}
			if inWay < fewest {
				fewest, where = inWay, b
				best = label{round(right), round(base), text}
			}
		}
	}
	if fewest == math.MaxInt { // too long for any place
		best = label{round(p.Right - 2), round(at - 5), text}
	}
	return best, where
}

// places along all lines, some units apart.
func (l Lines) places(x, y span) [][2]float64 {
	var all [][2]float64
	for _, series := range l.Series {
		var before *[2]float64
		for _, point := range series.Points {
			if !x.takes(point.X) || !y.takes(point.Y) {
				before = nil
				continue
			}
			at := [2]float64{x.at(point.X), y.at(point.Y)}
			if before != nil {
				const parts = 12
				for i := 1.0; i < parts; i++ {
					share := i / parts
					all = append(all, [2]float64{before[0] + (at[0]-before[0])*share, before[1] + (at[1]-before[1])*share})
				}
			}
			all = append(all, at)
			before = &at
		}
	}
	return all
}
