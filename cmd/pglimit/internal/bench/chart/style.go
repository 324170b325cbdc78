package chart

import "math"

// Styles is how many ways there are to draw a line: 1 to Styles. Each has its own colour,
// dash pattern and marker. A style beyond them begins again at the first.
const Styles = 11

func style(n int) int { return (max(1, n)-1)%Styles + 1 }

// marker appends the marker of that style to a path.
func marker(p *path, n int, x, y float64) {
	const r = 3.6
	polygon := func(corners ...float64) {
		p.move(x+corners[0]*r, y+corners[1]*r)
		for i := 2; i < len(corners); i += 2 {
			p.line(x+corners[i]*r, y+corners[i+1]*r)
		}
		p.end()
	}
	switch style(n) {
	case 1, 8:
		p.circle(x, y, r*0.95)
	case 2, 9:
		polygon(-0.9, -0.9, 0.9, -0.9, 0.9, 0.9, -0.9, 0.9)
	case 3, 11:
		polygon(0, -1.1, 1.1, 0.9, -1.1, 0.9)
	case 4, 10:
		polygon(0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0)
	case 5:
		polygon(0, 1.1, 1.1, -0.9, -1.1, -0.9)
	case 6:
		polygon(-0.9, -0.9, 0.9, 0.9)
		polygon(-0.9, 0.9, 0.9, -0.9)
	default:
		polygon(-1.2, 0, 1.2, 0)
		polygon(0, -1.2, 0, 1.2)
	}
}

// swatch shows in the legend how a line is drawn.
type swatch struct {
	Name   string
	Style  int
	Marker string
}

func newSwatch(name string, n int) swatch {
	var p path
	marker(&p, n, 17, 6)
	return swatch{Name: name, Style: style(n), Marker: p.String()}
}

// marked says which of n points get a marker: all of a few, and else some six of them,
// which lie elsewhere for each style so that lines on top of each other are all seen.
func marked(n, i, styleNumber int) bool {
	if n <= 8 {
		return true
	}
	every := int(math.Ceil(float64(n) / 6))
	return i%every == (styleNumber*every*3/Styles)%every
}
