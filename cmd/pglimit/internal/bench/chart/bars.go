package chart

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// Bars is a picture of one number per name, from 0.
type Bars struct {
	ID      string // unique in the page
	Title   string
	Caption string // what to see in the picture, and what would be bad
	Label   string // what the numbers are: "requests granted"
	Unit    Unit
	Bars    []Bar

	// NoteLabel is what the notes of the bars are, if they have any: "end".
	NoteLabel string
}

// Bar of one name.
type Bar struct {
	Name  string
	Style int // 1 to Styles
	Value float64

	// Low and High are the least and the greatest of several measurements. Both 0: there
	// was one.
	Low, High float64

	// Note is a second number, which is written and not drawn. NaN: it is not known.
	Note float64
}

// placedBar is a bar in its picture.
type placedBar struct {
	Name, Text    string
	Style         int
	TextY, Y      float64
	Width, Height float64
	Range         string // path from the least to the greatest
}

const (
	rowHeight = 40
	barHeight = 14
	barRoom   = 4 // left and right of the longest bar
)

// Empty says that no bar has a length.
func (b Bars) Empty() bool {
	for _, bar := range b.Bars {
		if drawable(bar.Value) && bar.Value > 0 {
			return false
		}
	}
	return true
}

// HTML is the figure.
func (b Bars) HTML() (template.HTML, error) {
	return figure{
		ID: b.ID, Title: b.Title, Caption: b.Caption, Description: b.description(),
		Width: width, Height: float64(rowHeight*len(b.Bars) + 4), Bars: b.place(), Table: b.table(),
	}.html()
}

func (b Bars) place() []placedBar {
	longest := 0.0
	for _, bar := range b.Bars {
		for _, v := range []float64{bar.Value, bar.High} {
			if drawable(v) {
				longest = math.Max(longest, v)
			}
		}
	}
	if b.Unit == Percent {
		longest = math.Max(longest, 100)
	}
	if longest == 0 {
		longest = 1
	}
	long := func(v float64) float64 { return math.Max(0, v) / longest * (width - 2*barRoom) }
	var placed []placedBar
	for i, bar := range b.Bars {
		top := float64(i * rowHeight)
		p := placedBar{Name: short(bar.Name), Text: b.text(bar), Style: style(bar.Style), TextY: top + 15, Y: top + 21, Height: barHeight}
		if drawable(bar.Value) && bar.Value > 0 {
			p.Width = round(math.Max(1, long(bar.Value)))
		}
		if bar.High > bar.Low && drawable(bar.Low) && drawable(bar.High) {
			p.Range = whiskers(barRoom+long(bar.Low), barRoom+long(bar.High), p.Y+barHeight/2)
		}
		placed = append(placed, p)
	}
	return placed
}

// short leaves the end of a very long name to the table.
func short(name string) string {
	const most = 28
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return name
}

// whiskers from the least to the greatest.
func whiskers(low, high, middle float64) string {
	var p path
	p.move(low, middle)
	p.across(high)
	for _, end := range []float64{low, high} {
		p.move(end, middle-4)
		p.down(middle + 4)
	}
	return p.String()
}

func (b Bars) text(bar Bar) string {
	if !drawable(bar.Value) {
		return "–"
	}
	text := b.Unit.Text(bar.Value)
	if b.NoteLabel != "" && drawable(bar.Note) {
		text += " (" + b.NoteLabel + " " + b.Unit.Text(bar.Note) + ")"
	}
	return text
}

func (b Bars) description() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s.", b.Label)
	for _, bar := range b.Bars {
		fmt.Fprintf(&out, " %s: %s.", bar.Name, b.text(bar))
	}
	return out.String()
}

// table has a row per bar.
func (b Bars) table() table {
	ranges := false
	for _, bar := range b.Bars {
		ranges = ranges || bar.High > bar.Low
	}
	t := table{Head: []string{"", withUnit(Axis{Label: b.Label, Unit: b.Unit})}}
	if ranges {
		t.Head = append(t.Head, "lowest", "highest")
	}
	if b.NoteLabel != "" {
		t.Head = append(t.Head, b.NoteLabel)
	}
	for _, bar := range b.Bars {
		r := row{Head: bar.Name, Cells: []string{exact(bar.Value)}}
		if ranges {
			low, high := exact(bar.Low), exact(bar.High)
			if bar.Low == 0 && bar.High == 0 {
				low, high = "–", "–"
			}
			r.Cells = append(r.Cells, low, high)
		}
		if b.NoteLabel != "" {
			r.Cells = append(r.Cells, exact(bar.Note))
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}
