// Package chart draws small pictures of numbers as SVG inside HTML: lines over time or over
// percentiles, and bars. A picture needs no script and nothing from elsewhere, can be told
// apart without colours, and brings its numbers along as a table.
//
//	chart.go    what all pictures have in common
//	lines.go    lines over an axis; layout.go places them, limit.go the lines across;
//	            path.go writes them as SVG has it
//	bars.go     one bar per name
//	scale.go    from numbers to places, and where the ticks are
//	unit.go     how numbers are written
//	style.go    dashes and markers
//	table.go    the numbers behind a picture
//
// The page that shows pictures includes [CSS] once. It sets the variables --bg and --text
// itself if it wants other colours for both.
package chart

import (
	"bytes"
	_ "embed"
	"html/template"
)

// Picture is a figure to be shown.
type Picture interface {
	// HTML is one figure element: caption, legend, SVG and table.
	HTML() (template.HTML, error)

	// Empty says that there is no number to draw.
	Empty() bool
}

var (
	//go:embed chart.html
	figureText string
	//go:embed chart.css
	cssText string

	figureTemplate = template.Must(template.New("figure").Parse(figureText))
)

// CSS of all pictures, for light and dark screens and for paper.
func CSS() template.CSS {
	return template.CSS(cssText) //nolint:gosec // the text is embedded
}

// figure is what the template shows.
type figure struct {
	ID, Title, Caption, Description string
	Width, Height                   float64
	Legend                          []swatch
	Plot                            *plot
	Bars                            []placedBar
	Table                           table
}

func (f figure) html() (template.HTML, error) {
	var out bytes.Buffer
	err := figureTemplate.Execute(&out, f)
	return template.HTML(out.String()), err //nolint:gosec // html/template has escaped it
}

// width of the pictures in the units of their SVG. On a telephone 360 pixels wide a unit
// becomes 0.8 pixels, which leaves the text readable.
const width = 400
