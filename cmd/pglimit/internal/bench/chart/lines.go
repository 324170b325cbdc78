package chart

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Lines is a picture of several series over one axis.
type Lines struct {
	ID      string // unique in the page
	Title   string
	Caption string // what to see in the picture, and what would be bad

	X, Y   Axis
	Series []Series

	// Limits are numbers of the y axis with a line of their own.
	Limits []Limit

	// Changes are places of the x axis where something else begins.
	Changes []Change

	// Step: a number holds since the point before, as counts per interval do.
	Step bool
}

// Axis of a picture.
type Axis struct {
	Label string // what the numbers are: "grants per second"
	Unit  Unit
	Scale Scale
}

// Series is one line.
type Series struct {
	Name   string
	Style  int // 1 to Styles
	Points []Point
}

// Point of a line. The line has a gap where Y is NaN or has no place on the axis.
type Point struct{ X, Y float64 }

// Limit is a line across the picture.
type Limit struct {
	Y     float64
	Label string // "the limit: 5 in 10 s"
}

// Change is a mark on the x axis.
type Change struct {
	X     float64
	Label string // what begins here: "50/s"
}

// Empty says that no series has a point with a place in the picture.
func (l Lines) Empty() bool {
	x, y := l.spans()
	for _, series := range l.Series {
		if series.seen(x, y) {
			return false
		}
	}
	return true
}

// seen says that a series has a point with a place in the picture.
func (s Series) seen(x, y span) bool {
	return slices.ContainsFunc(s.Points, func(p Point) bool { return x.takes(p.X) && y.takes(p.Y) })
}

// HTML is the figure.
func (l Lines) HTML() (template.HTML, error) {
	f := figure{
		ID: l.ID, Title: l.Title, Caption: l.Caption, Description: l.description(),
		Width: width, Height: height, Plot: l.plot(), Table: l.table(),
	}
	x, y := l.spans()
	for _, series := range l.Series {
		name := series.Name
		if !series.seen(x, y) {
			name += " (none)"
		}
		f.Legend = append(f.Legend, newSwatch(name, series.Style))
	}
	return f.html()
}

// spans of both axes.
func (l Lines) spans() (x, y span) {
	var xs, ys, limits []float64
	for _, series := range l.Series {
		for _, point := range series.Points {
			if drawable(point.X) && drawable(point.Y) {
				xs, ys = append(xs, point.X), append(ys, point.Y)
			}
		}
	}
	for _, limit := range l.Limits {
		limits = append(limits, limit.Y)
	}
	return newSpan(l.X.Scale, l.X.Unit, xs, nil), newSpan(l.Y.Scale, l.Y.Unit, ys, limits)
}

// description says for those who do not see the picture what each line does.
func (l Lines) description() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s, over %s.", l.Y.Label, l.X.Label)
	for _, limit := range l.Limits {
		fmt.Fprintf(&out, " A line at %s: %s.", l.Y.Unit.Text(limit.Y), limit.Label)
	}
	x, y := l.spans()
	for _, series := range l.Series {
		least, most, last := math.NaN(), math.NaN(), math.NaN()
		for _, point := range series.Points {
			if x.takes(point.X) && y.takes(point.Y) {
				last = point.Y
				if math.IsNaN(least) {
					least, most = last, last
				}
				least, most = math.Min(least, last), math.Max(most, last)
			}
		}
		switch {
		case math.IsNaN(last):
			fmt.Fprintf(&out, " %s: nothing.", series.Name)
		case least == most:
			fmt.Fprintf(&out, " %s: always %s.", series.Name, l.Y.Unit.Text(last))
		default:
			fmt.Fprintf(&out, " %s: %s to %s, %s at the end.", series.Name, l.Y.Unit.Text(least), l.Y.Unit.Text(most), l.Y.Unit.Text(last))
		}
	}
	return out.String()
}
