// Package text prints what was measured, and the answer that package answer gives, in lines of at most [Width] columns.
//
//	grid.go     tables and lines
//	screen.go   the answer on one screen; a load of its own
//	figures.go  the figures of a load, for --details
//	others.go   the comparison of two reports, the loads that there are
//
// A figure that is not known is "?", and one that there cannot be "-". Where a load was run in several rounds, figures
// are medians.
package text

import (
	"slices"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"
)

// Width that no line exceeds.
const Width = 80

func width(s string) int { return pretty.StringWidthWithoutEscSequences(s) }

// clip cuts text that is wider than a line.
func clip(s string) string {
	if width(s) <= Width {
		return s
	}
	return strings.TrimRight(pretty.Snip(s, Width, "..."), " ")
}

// wrap breaks text into lines; those after the first are indented more than it is.
func wrap(s string, indent int) (lines []string) {
	begin := s[:len(s)-len(strings.TrimLeft(s, " "))]
	line := ""
	for word := range strings.FieldsSeq(strings.NewReplacer(" ×", "\u00a0×", " %", "\u00a0%", " ms", "\u00a0ms", " µs", "\u00a0µs").Replace(s)) {
		switch {
		case line == "":
			line = begin + word
		case width(line)+1+width(word) > Width:
			lines = append(lines, line)
			line = begin + strings.Repeat(" ", indent) + word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	for i := range lines {
		lines[i] = clip(strings.ReplaceAll(lines[i], "\u00a0", " "))
	}
	return lines
}

// gap between columns.
const gap = 2

// grid lays out a head and rows, the first column to the left and the others to the right. A row of one cell is a
// heading. Names in the head are broken after underscores where that saves room, and columns that do not fit go on
// below.
func grid(head []string, rows [][]string) (lines []string) {
	wide := make([]int, len(head)) // of the cells below the head
	for _, row := range rows {
		for i, cell := range row {
			if len(row) > 1 {
				wide[i] = max(wide[i], width(cell))
			}
		}
	}
	broken := make([][]string, len(head))
	total := 0
	for i, name := range head {
		broken[i] = []string{name}
		total += max(wide[i], width(name)) + gap
	}
	if total-gap > Width {
		for i, name := range head {
			broken[i] = brokenName(name, max(wide[i], len("for_update_")))
		}
	}
	for i := range head {
		for _, part := range broken[i] {
			wide[i] = max(wide[i], width(part))
		}
	}
	for from := 1; from < len(head); {
		columns, used := []int{0}, wide[0]
		for ; from < len(head) && (len(columns) == 1 || used+gap+wide[from] <= Width); from++ {
			columns = append(columns, from)
			used += gap + wide[from]
		}
		lines = append(lines, page(columns, wide, broken, rows)...)
	}
	return lines
}

// page is a part of the grid: these columns.
func page(columns, wide []int, head [][]string, rows [][]string) (lines []string) {
	high := 0
	for _, c := range columns {
		high = max(high, len(head[c]))
	}
	for i := range high {
		var cells []string
		for _, c := range columns {
			cell := ""
			if at := i - high + len(head[c]); at >= 0 { // at the bottom
				cell = head[c][at]
			}
			cells = append(cells, cell)
		}
		lines = append(lines, layOut(cells, columns, wide))
	}
	for _, row := range rows {
		if len(row) == 1 {
			lines = append(lines, clip(row[0]))
			continue
		}
		var cells []string
		for _, c := range columns {
			cells = append(cells, row[c])
		}
		lines = append(lines, layOut(cells, columns, wide))
	}
	return lines
}

func layOut(cells []string, columns, wide []int) string {
	var out strings.Builder
	for i, cell := range cells {
		space := strings.Repeat(" ", max(0, wide[columns[i]]-width(cell)))
		if i == 0 {
			out.WriteString(cell + space)
		} else {
			out.WriteString(strings.Repeat(" ", gap) + space + cell)
		}
	}
	return clip(strings.TrimRight(out.String(), " "))
}

// brokenName is a name in lines that are no wider than the column, if its parts are not.
func brokenName(name string, wide int) (lines []string) {
	for _, part := range strings.SplitAfter(name, "_") {
		if last := len(lines) - 1; last >= 0 && width(lines[last]+part) <= wide {
			lines[last] += part
		} else {
			lines = append(lines, part)
		}
	}
	return lines
}

// paragraphs with an empty line between them. Those without lines are left out.
func paragraphs(all ...[]string) string {
	all = slices.DeleteFunc(all, func(lines []string) bool { return len(lines) == 0 })
	var out strings.Builder
	for i, lines := range all {
		if i > 0 {
			out.WriteString("\n")
		}
		for _, line := range lines {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}
