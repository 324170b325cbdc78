package chart

import (
	"slices"
	"strings"
)

// table of the numbers that are drawn.
type table struct {
	Head []string // the first is of the heads of the rows
	Rows []row
}

type row struct {
	Head  string
	Cells []string
}

// table has a row per place on the x axis and a column per series.
func (l Lines) table() table {
	t := table{Head: []string{withUnit(l.X)}}
	var xs []float64
	values := make([]map[float64]float64, len(l.Series))
	for i, series := range l.Series {
		t.Head = append(t.Head, series.Name)
		values[i] = map[float64]float64{}
		for _, point := range series.Points {
			if drawable(point.X) {
				xs = append(xs, point.X)
				values[i][point.X] = point.Y
			}
		}
	}
	slices.Sort(xs)
	for _, x := range slices.Compact(xs) {
		r := row{Head: exact(x)}
		for i := range l.Series {
			cell := "–"
			if y, known := values[i][x]; known {
				cell = exact(y)
			}
			r.Cells = append(r.Cells, cell)
		}
		t.Rows = append(t.Rows, r)
	}
	return t
}

// withUnit is the label of an axis with the unit of the numbers in the table.
func withUnit(a Axis) string {
	if name := a.Unit.name(); name != "" && a.Label != "" && !strings.Contains(a.Label, "percent") {
		return a.Label + ", " + name
	}
	return a.Label
}
