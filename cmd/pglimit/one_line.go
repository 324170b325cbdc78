package main

import "strings"

// oneLine returns the error as it is printed: without line breaks, and without the names
// of our packages as prefixes.
func oneLine(err error) string {
	text := ""
	for line := range strings.Lines(err.Error()) {
		line = strings.Join(strings.Fields(line), " ")
		for _, name := range []string{"pglimit: ", "migrations: ", "cleanup: ", "strategies: "} {
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
