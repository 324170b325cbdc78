package chart

import (
	"html/template"
	"math"
	"strings"
)

// Bars lie on one axis, from 0 to the whole.
type Bars struct {
	Title string
	Bars  []Bar
}

// Bar is a share of the whole.
type Bar struct {
	Name  string
	Class string // of its series

	Share     float64 // 1 is the whole. NaN: only the text is shown
	Low, High float64 // of the rounds, as shares. The same: there was one

	Value  string // the figure: 19,208
	Mark   string // what to see in it: best, 85 %
	Strong bool   // it is the one to look at
}

// beyond the whole the axis goes on that far, for rounds above the median.
const beyond = 1.1

// SVG of the bars. It is empty where there are none.
func (b Bars) SVG() template.HTML {
	if len(b.Bars) == 0 {
		return ""
	}
	const thick, gap = 12.0, 8.0
	names, values, marks := 0.0, 0.0, 0.0
	var described []string
	for _, bar := range b.Bars {
		names, values, marks = max(names, wide(bar.Name)), max(values, wide(bar.Value)), max(marks, wide(bar.Mark))
		described = append(described, strings.TrimRight(bar.Name+" "+bar.Value+", "+bar.Mark, ", "))
	}
	row, left, above := 21.0, names+gap, 0.0
	if left > Width/2 { // the names leave no room for the bars: they go above them
		row, left, above = 36, 0, 16
	}
	height := row * float64(len(b.Bars))
	p := newPanel(height, b.Title, strings.Join(described, "; "))
	value := Width - marks - gap
	right := value - values - gap
	at := func(share float64) float64 { return left + (right-left)*math.Min(share, beyond)/beyond }
	for _, share := range []float64{0, 1} {
		p.rule("grid", at(share), above, at(share), height)
	}
	for i, bar := range b.Bars {
		middle := row*float64(i) + above + (row-above)/2
		strong := ""
		if bar.Strong {
			strong = " strong"
		}
		p.text("name"+strong, "start", 0, middle-above+4, bar.Name)
		p.text("value"+strong, "end", value, middle+4, bar.Value)
		p.text("mark"+strong, "end", Width, middle+4, bar.Mark)
		if known(bar.Share) {
			p.rect("bar "+bar.Class+strong, left, middle-thick/2, math.Max(at(bar.Share)-left, 1), thick)
		}
		if known(bar.Low) && known(bar.High) && bar.Low != bar.High {
			p.rule("spread", at(bar.Low), middle, at(bar.High), middle)
		}
	}
	return p.done()
}
