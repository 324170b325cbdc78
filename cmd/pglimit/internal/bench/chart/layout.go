package chart

import (
	"cmp"
	"math"
	"slices"
	"unicode/utf8"
)

// The frame of a picture with axes, in units of the SVG. A character is up to
// 8.2 wide.
const (
	height      = 270
	marginRight = 16
	bottom      = height - 40
	character   = 8.2
)

// plot is what is drawn inside the frame.
type plot struct {
	Left, Right, Top, Bottom float64
	Grid, Frame              string // paths
	XTicks, YTicks, Changes  []label
	XLabel, YLabel           string
	XLabelY                  float64
	ChangeLines              string
	Lines                    []drawn
	Limits                   []label
	LimitLines               string
}

// label is a text at its place.
type label struct {
	X, Y float64
	Text string
}

// drawn is a series as two paths: its line and its markers.
type drawn struct {
	Style         int
	Line, Markers string
}

func (l Lines) plot() *plot {
	x, y := l.spans()
	p := &plot{Right: width - marginRight, Top: 26, Bottom: bottom, XLabel: l.X.Label, XLabelY: height - 4, YLabel: l.Y.Label}
	if y.scale == Log {
		p.YLabel += " (log scale)"
	}
	if len(l.Changes) > 0 {
		p.Top += 24
	}
	longest := 0.0
	for _, tick := range y.ticks {
		longest = max(longest, wide(l.Y.Unit.Text(tick)))
	}
	p.Left = round(longest + 12)
	x.from, x.to = p.Left, p.Right
	y.from, y.to = p.Bottom, p.Top

	p.axes(l, x, y)
	p.changes(l.Changes, x)
	for _, series := range l.Series {
		p.Lines = append(p.Lines, series.draw(x, y, l.Step))
	}
	p.limits(l, x, y)
	return p
}

func (p *plot) axes(l Lines, x, y span) {
	var grid, frame path
	for _, tick := range y.ticks {
		at := y.at(tick)
		grid.move(p.Left, at)
		grid.across(p.Right)
		p.YTicks = append(p.YTicks, label{round(p.Left - 6), round(at + 4.5), l.Y.Unit.Text(tick)})
	}
	free := math.Inf(-1) // where the label before ends
	for _, tick := range x.ticks {
		at, text := x.at(tick), l.X.Unit.Text(tick)
		if x.scale == Percentile {
			text = exact(tick)
		}
		frame.move(at, p.Bottom)
		frame.down(p.Bottom + 4)
		half := wide(text) / 2
		middle := math.Min(at, width-1-half)
		if middle-half < free+4 {
			continue
		}
		free = middle + half
		p.XTicks = append(p.XTicks, label{round(middle), p.Bottom + 17, text})
	}
	frame.move(p.Left, p.Top)
	frame.down(p.Bottom)
	frame.across(p.Right)
	p.Grid, p.Frame = grid.String(), frame.String()
}

func (p *plot) changes(changes []Change, x span) {
	var lines path
	free := math.Inf(-1)
	fromTheLeft := func(a, b Change) int { return cmp.Compare(a.X, b.X) }
	for _, change := range slices.SortedStableFunc(slices.Values(changes), fromTheLeft) {
		at := x.at(change.X)
		if !(at >= p.Left && at <= p.Right) {
			continue
		}
		if at > p.Left+1 {
			lines.move(at, p.Top-20)
			lines.down(p.Bottom)
		}
		if at < free {
			continue
		}
		free = at + 8 + wide(change.Label)
		if free <= width {
			p.Changes = append(p.Changes, label{round(at + 4), p.Top - 10, change.Label})
		}
	}
	p.ChangeLines = lines.String()
}

func (s Series) draw(x, y span, step bool) drawn {
	var line, markers path
	open := false
	for i, point := range s.Points {
		if !x.takes(point.X) || !y.takes(point.Y) {
			open = false
			continue
		}
		atX, atY := x.at(point.X), y.at(point.Y)
		markX := atX
		switch {
		case step:
			from := s.before(i, x)
			if open {
				line.down(atY)
			} else {
				line.move(from, atY)
			}
			line.across(atX)
			// Steps of several series end at the same places: their markers need not.
			markX = from + (atX-from)*(float64(style(s.Style))-0.5)/Styles
		case open:
			line.line(atX, atY)
		default:
			line.move(atX, atY)
		}
		open = true
		switch {
		case marked(len(s.Points), i, s.Style):
			marker(&markers, s.Style, markX, atY)
		case !step && s.alone(i, x, y):
			markers.circle(atX, atY, 1)
		}
	}
	return drawn{Style: style(s.Style), Line: line.String(), Markers: markers.String()}
}

// before is where the step to a point begins: at the point before, or where the axis does.
func (s Series) before(i int, x span) float64 {
	if i > 0 && x.takes(s.Points[i-1].X) {
		return x.at(s.Points[i-1].X)
	}
	return x.from
}

// alone says that no line leads to a point, as both its neighbours have no place. Without a
// marker it would not be seen.
func (s Series) alone(i int, x, y span) bool {
	has := func(i int) bool {
		return i >= 0 && i < len(s.Points) && x.takes(s.Points[i].X) && y.takes(s.Points[i].Y)
	}
	return !has(i-1) && !has(i+1)
}

// wide is about how wide a text is.
func wide(text string) float64 { return float64(utf8.RuneCountInString(text)) * character }

func round(v float64) float64 { return math.Round(v*10) / 10 }
