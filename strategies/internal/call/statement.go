package call

import (
	_ "embed" // for the .sql files
	"strings"
)

// Statement makes what is sent of a .sql file: without its comments, and with
// $table replaced where several strategies share the file.
func Statement(file, table string) string {
	var lines []string
	for line := range strings.Lines(file) {
		if trimmed := strings.TrimSpace(line); trimmed != "" && !strings.HasPrefix(trimmed, "--") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "$table", "pglimit."+table)
}
