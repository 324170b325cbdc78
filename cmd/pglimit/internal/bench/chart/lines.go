package chart

import (
	"html/template"
	"math"
	"slices"
	"strings"
)

// Lines is a panel of lines.
type Lines struct {
	Title string
	X, Y  Axis
	Lines []Line

	Limit Mark   // across the panel. 0: there is none
	Begin []Mark // where something else begins, on the x axis
}

// Axis of a panel.
type Axis struct {
	Label string // what the figures are
	Scale Scale
	Text  func(float64) string
}

// Line of one series.
type Line struct {
	Name   string
	Class  string
	Points []Point
}

// Point of a line. One that has no place on an axis, such as 0 on a logarithmic one, is left out.
type Point struct{ X, Y float64 }

// Mark on an axis.
type Mark struct {
	At    float64
	Label string
}

// seen are the points with a place in the panel.
func (l Lines) seen(line Line) []Point {
	return slices.DeleteFunc(slices.Clone(line.Points), func(p Point) bool {
		return !known(l.X.Scale.measure(p.X)) || !known(l.Y.Scale.measure(p.Y))
	})
}

// Empty says that there is nothing to see: no line has two points, or all are 0.
func (l Lines) Empty() bool {
	return !slices.ContainsFunc(l.Lines, func(line Line) bool {
		points := l.seen(line)
		return len(points) > 1 && slices.ContainsFunc(points, func(p Point) bool { return p.Y != 0 })
	})
}

// SVG of the lines. It is empty where there is nothing to see.
func (l Lines) SVG() template.HTML {
	if l.Empty() {
		return ""
	}
	const height, top, bottom, gap = 146.0, 8.0, 124.0, 6.0
	var xs, ys []float64
	for _, line := range l.Lines {
		for _, p := range l.seen(line) {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
	}
	if l.Limit.At != 0 {
		ys = append(ys, l.Limit.At)
	}
	x, y := newSpan(l.X.Scale, xs, l.X.Scale != Nines), newSpan(l.Y.Scale, ys, false)
	left := 0.0
	for _, tick := range y.ticks {
		left = math.Max(left, wide(l.Y.Text(tick))+gap)
	}
	x.from, x.to, y.from, y.to = left, Width-20, bottom, top

	p := newPanel(height, l.Title, l.description())
	for _, tick := range y.ticks {
		p.rule("grid", left, y.at(tick), x.to, y.at(tick))
		p.text("axis", "end", left-gap, y.at(tick)+4, l.Y.Text(tick))
	}
	free := 0.0 // from there on, so that labels do not overlap
	for _, tick := range x.ticks {
		text := l.X.Text(tick)
		if half := wide(text) / 2; x.at(tick)-half >= free {
			p.text("axis", "middle", x.at(tick), bottom+17, text)
			free = x.at(tick) + half + gap
		}
	}
	for _, mark := range l.Begin {
		p.rule("begin", x.at(mark.At), top, x.at(mark.At), bottom)
		p.text("axis", "start", x.at(mark.At)+4, top+9, mark.Label)
	}
	if l.Limit.At != 0 {
		p.rule("limit", left, y.at(l.Limit.At), x.to, y.at(l.Limit.At))
		p.text("axis", "end", x.to, y.at(l.Limit.At)-5, l.Limit.Label)
	}
	for _, line := range slices.Backward(l.Lines) { // the first, which matters most, lies on top
		points := l.seen(line)
		p.line(points, line.Class, l.X.Scale != Nines && len(points) <= 12, x, y)
	}
	return p.done()
}

func (p *panel) line(points []Point, class string, dots bool, x, y span) {
	p.add(`<path class="line %v" d="`, class)
	for i, point := range points {
		p.add(map[bool]string{true: "M%v %v", false: "L%v %v"}[i == 0], x.at(point.X), y.at(point.Y))
	}
	p.add(`"/>`)
	for _, point := range points {
		if dots {
			p.rule("dot "+class, x.at(point.X), y.at(point.Y), x.at(point.X), y.at(point.Y))
		}
	}
}

// description says what each line does.
func (l Lines) description() string {
	out := []string{l.Y.Label + ", by " + l.X.Label}
	if l.Limit.At != 0 {
		out = append(out, l.Limit.Label)
	}
	for _, line := range l.Lines {
		if points := l.seen(line); len(points) > 0 {
			last := points[len(points)-1]
			out = append(out, line.Name+": "+l.Y.Text(points[0].Y)+" to "+l.Y.Text(last.Y)+" at "+l.X.Text(last.X))
		}
	}
	return strings.Join(out, "; ")
}
