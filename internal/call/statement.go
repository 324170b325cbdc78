package call

import (
	_ "embed" // for the .sql files
	"strings"
)

// Statement returns the text of a .sql file as it is sent: without comment lines, and with
// $table replaced, because several strategies may share the file.
func Statement(file, table string) string {
	var lines []string
	for line := range strings.Lines(file) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "$table", "pglimit."+table)
}
