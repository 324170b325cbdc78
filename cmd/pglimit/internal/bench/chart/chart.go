// Package chart draws bars and lines as SVG, one panel at a time. A panel is as wide as a phone; a page lays several
// out in a grid. It has no colours and no fonts: the page that shows it styles the classes.
//
//	chart.go   what a panel consists of
//	bars.go    bars beside each other, each with its figure
//	lines.go   lines over an axis
//	scale.go   linear, of time, logarithmic, and by nines
//
// Classes: grid, limit, begin (lines across), bar, spread (from the lowest to the highest), line, dot; of text name,
// value, mark, axis; strong (the one to look at); and s1, s2, … for a series, which set its colour.
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

// wide is how wide a text is, at most.
func wide(text string) float64 { return 7.5 * float64(utf8.RuneCountInString(text)) }

// panel is the SVG so far.
type panel struct{ out strings.Builder }

// newPanel begins one. The title and the description are for readers who do not see it.
func newPanel(height float64, title, description string) *panel {
	p := &panel{}
	p.add(`<svg viewBox="0 0 %v %v" role="img"><title>%v</title><desc>%v</desc>`, Width, height, title, description)
	return p
}

// add markup with numbers and texts in it, which are rounded and escaped.
func (p *panel) add(markup string, parts ...any) {
	for i, part := range parts {
		if f, is := part.(float64); is {
			parts[i] = strconv.FormatFloat(math.Round(10*f)/10, 'f', -1, 64)
		} else {
			parts[i] = template.HTMLEscaper(part)
		}
	}
	fmt.Fprintf(&p.out, markup, parts...)
}

func (p *panel) done() template.HTML {
	return template.HTML(p.out.String() + "</svg>") //nolint:gosec // all text in it was escaped
}

func (p *panel) rect(class string, x, y, width, height float64) {
	p.add(`<rect class="%v" x="%v" y="%v" width="%v" height="%v" rx="2"/>`, class, x, y, width, height)
}

func (p *panel) rule(class string, x1, y1, x2, y2 float64) {
	p.add(`<path class="%v" d="M%v %vL%v %v"/>`, class, x1, y1, x2, y2)
}

// text whose anchor, start, middle or end, is at x.
func (p *panel) text(class, anchor string, x, y float64, text string) {
	p.add(`<text class="%v" text-anchor="%v" x="%v" y="%v">%v</text>`, class, anchor, x, y, text)
}

// known says that a figure can be drawn.
func known(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
