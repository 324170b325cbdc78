// Package chart draws bars and lines as SVG, one panel at a time. A panel is as wide as a phone; a page lays several out
// in a grid. It has no colours and no fonts: the page that shows it styles the classes.
//
//	chart.go   what a panel consists of
//	bars.go    bars beside each other, each with its figure
//	lines.go   lines over an axis
//	scale.go   linear, of time, logarithmic, and by nines
//
// Classes: grid (thin lines of the axis), limit (a line that matters), bar, spread (from the lowest to the highest), line,
// dot; of text name, value, mark, axis; and s1, s2, … for a series, which set its colour.
package chart

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Width of a panel, in its own units.
const Width = 360

// Series is how many there are to tell apart: s1 to s8.
const Series = 8

// Class of the i-th series, from 0.
func Class(i int) string { return "s" + strconv.Itoa(i%Series+1) }

// wide is about how wide a text is.
func wide(text string) float64 { return 7.5 * float64(utf8.RuneCountInString(text)) }

// panel is the SVG so far.
type panel struct{ out strings.Builder }

// newPanel begins one. The title and the description are for readers who do not see it.
func newPanel(height float64, title, description string) *panel {
	p := &panel{}
	fmt.Fprintf(&p.out, `<svg viewBox="0 0 %d %s" role="img"><title>%s</title><desc>%s</desc>`, Width, number(height), escape(title), escape(description))
	return p
}

func (p *panel) done() template.HTML {
	return template.HTML(p.out.String() + "</svg>") //nolint:gosec // all text in it was escaped
}

func (p *panel) rect(class string, x, y, width, height float64) {
	fmt.Fprintf(&p.out, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="2"/>`, class, number(x), number(y), number(width), number(height))
}

func (p *panel) rule(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&p.out, `<path class="%s" d="M%s %sL%s %s"/>`, class, number(x1), number(y1), number(x2), number(y2))
}

// text whose anchor, start, middle or end, is at x.
func (p *panel) text(class, anchor string, x, y float64, text string) {
	fmt.Fprintf(&p.out, `<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`, class, anchor, number(x), number(y), escape(text))
}

// number has at most one decimal.
func number(f float64) string { return strconv.FormatFloat(math.Round(10*f)/10, 'f', -1, 64) }

func escape(text string) string { return template.HTMLEscapeString(text) }

// known says that a figure can be drawn.
func known(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
