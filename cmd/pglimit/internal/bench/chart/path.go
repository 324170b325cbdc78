package chart

import (
	"math"
	"strconv"
	"strings"
)

// path builds the d attribute of an SVG path, to a tenth of a unit. All but its first
// command are relative to the place before, which takes half the room of absolute ones.
type path struct {
	text           strings.Builder
	x, y           int // where it is, in tenths
	startX, startY int // of the part that end closes
}

func (p *path) String() string { return p.text.String() }

func (p *path) move(x, y float64) {
	command := byte('m')
	if p.text.Len() == 0 {
		command = 'M'
	}
	p.to(command, x, y)
	p.startX, p.startY = p.x, p.y
}

func (p *path) line(x, y float64) { p.to('l', x, y) }

func (p *path) end() {
	p.text.WriteByte('z')
	p.x, p.y = p.startX, p.startY
}

// across draws a line to that x, down to that y.
func (p *path) across(x float64) {
	p.text.WriteString("h" + tenths(inTenths(x)-p.x))
	p.x = inTenths(x)
}

func (p *path) down(y float64) {
	p.text.WriteString("v" + tenths(inTenths(y)-p.y))
	p.y = inTenths(y)
}

// circle around that place.
func (p *path) circle(x, y, r float64) {
	p.move(x-r, y)
	radius := tenths(inTenths(r))
	for _, sign := range []string{"", "-"} {
		p.text.WriteString("a" + radius + " " + radius + " 0 1 0 " + sign + tenths(2*inTenths(r)) + " 0")
	}
}

func (p *path) to(command byte, x, y float64) {
	toX, toY := inTenths(x), inTenths(y)
	across, down := tenths(toX-p.x), tenths(toY-p.y)
	p.text.WriteByte(command)
	p.text.WriteString(across)
	if down[0] != '-' { // a sign separates as well as a space
		p.text.WriteByte(' ')
	}
	p.text.WriteString(down)
	p.x, p.y = toX, toY
}

func inTenths(v float64) int { return int(math.Round(v * 10)) }

// tenths writes 12 as 1.2, -5 as -.5 and 30 as 3.
func tenths(n int) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	whole, tenth := strconv.Itoa(n/10), strconv.Itoa(n%10)
	switch {
	case tenth == "0":
		return sign + whole
	case whole == "0":
		return sign + "." + tenth
	}
	return sign + whole + "." + tenth
}
