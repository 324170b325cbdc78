package main

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// print answers on stdout: the value as one line of JSON, or the text.
func (a *app) print(value any, text string) error {
	if a.output == outputJSON {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(value)
	}
	_, err := io.WriteString(a.stdout, text)
	return err
}

// columns aligns rows of cells under a head.
func columns(head []string, rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		_, _ = io.WriteString(w, strings.Join(row, "\t")+"\n") // a Builder does not fail
	}
	_ = w.Flush()
	return b.String()
}

// numbers returns the cells of a row.
func numbers(all ...int64) (cells []string) {
	for _, n := range all {
		cells = append(cells, strconv.FormatInt(n, 10))
	}
	return cells
}

// shortDuration formats the duration for people: 9ms, 1.3s, 8m3s, 2h. It is rounded up, so that waiting that long is
// enough.
func shortDuration(d time.Duration) string {
	unit := time.Second
	switch {
	case d < time.Second:
		unit = time.Millisecond
	case d < time.Minute:
		unit = 100 * time.Millisecond
	}
	down := d.Truncate(unit)
	if down < d {
		down += unit
	}
	text := down.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// oneLine returns the text of the error without line breaks, and without the names of our packages as prefixes.
func oneLine(err error) string {
	text := ""
	for line := range strings.Lines(err.Error()) {
		line = strings.Join(strings.Fields(line), " ")
		for _, name := range []string{"pglimit: ", "migrations: ", "cleanup: ", "strategies: ", "limits: "} {
			line = strings.TrimPrefix(line, name)
		}
		switch {
		case line == "" || text == "":
			text += line
		case strings.HasSuffix(text, ":"):
			text += " " + line
		default: // joined errors have a line each
			text += "; " + line
		}
	}
	return strings.ReplaceAll(text, ": pglimit: ", ": ")
}
