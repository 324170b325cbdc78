package text

import (
	"slices"
	"strings"

	pretty "github.com/jedib0t/go-pretty/v6/text"
)

func width(s string) int { return pretty.StringWidthWithoutEscSequences(s) }

// clip cuts plain text that is wider than that.
func clip(s string, wide int) string {
	if width(s) <= wide {
		return s
	}
	return strings.TrimRight(pretty.Snip(s, wide, "..."), " ")
}

// widths of the columns that hold all rows.
func widths(rows ...[]string) (wide []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(wide) {
				wide = append(wide, 0)
			}
			wide[i] = max(wide[i], width(cell))
		}
	}
	return wide
}

// layOut pads cells to their columns: the first to the left, the others to the right.
func layOut(row []string, wide []int) string {
	var out strings.Builder
	for i, cell := range row {
		space := strings.Repeat(" ", max(0, wide[i]-width(cell)))
		if i == 0 {
			out.WriteString(cell + space)
		} else {
			out.WriteString(" " + space + cell)
		}
	}
	return strings.TrimRight(out.String(), " ")
}

// paged lays out a head and rows. If it is too wide, it goes on below: the first column is
// repeated there.
func paged(rows [][]string) (lines []string) {
	for _, columns := range pages(widths(rows...)) {
		part := make([][]string, 0, len(rows))
		for _, row := range rows {
			cells := []string{clip(row[0], Width/3)}
			for _, c := range columns {
				cells = append(cells, row[c])
			}
			part = append(part, cells)
		}
		wide := widths(part...)
		for _, row := range part {
			lines = append(lines, clip(layOut(row, wide), Width))
		}
	}
	return lines
}

// pages divides the columns after the first so that each part fits.
func pages(wide []int) (parts [][]int) {
	first := min(wide[0], Width/3)
	used := Width // so that the first one opens a part
	for c, w := range wide[1:] {
		if used += 1 + w; used > Width {
			parts, used = append(parts, nil), first+1+w
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], c+1)
	}
	return parts
}

// units stay on the line of their number.
var units = []string{"%", "µs", "ms", "s", "B"}

// wrap breaks text into lines. Those after the first are indented by as much.
func wrap(s string, wide, indent int) (lines []string) {
	line := ""
	for _, word := range words(s) {
		switch {
		case line == "":
			line = word
		case width(line)+1+width(word) <= wide:
			line += " " + word
		default:
			lines = append(lines, line)
			line = strings.Repeat(" ", indent) + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	for i := range lines {
		lines[i] = clip(lines[i], wide) // a single word may be wider
	}
	return lines
}

func words(s string) (out []string) {
	for word := range strings.FieldsSeq(s) {
		unit := slices.Contains(units, strings.TrimRight(word, ".,:;)"))
		if unit && len(out) > 0 {
			out[len(out)-1] += " " + word
		} else {
			out = append(out, word)
		}
	}
	return out
}
