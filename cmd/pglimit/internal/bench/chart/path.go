package chart

import (
	"math"
	"strconv"
	"strings"
)

// path builds the d attribute of an SVG path, to a tenth of a unit.
type path struct{ strings.Builder }

func (p *path) move(x, y float64) { p.command('M', x, y) }
func (p *path) line(x, y float64) { p.command('L', x, y) }
func (p *path) end()              { p.WriteByte('Z') }

func (p *path) command(name byte, x, y float64) {
	p.WriteByte(name)
	p.WriteString(place(x))
	p.WriteByte(' ')
	p.WriteString(place(y))
}

// across draws a line to that x, down to that y.
func (p *path) across(x float64) { p.WriteString("H" + place(x)) }
func (p *path) down(y float64)   { p.WriteString("V" + place(y)) }

func (p *path) circle(x, y, r float64) {
	p.move(x-r, y)
	for _, across := range []float64{2 * r, -2 * r} {
		p.WriteString("a" + place(r) + " " + place(r) + " 0 1 0 " + place(across) + " 0")
	}
}

// place is a coordinate as SVG has it.
func place(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}
