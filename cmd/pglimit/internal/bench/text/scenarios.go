package text

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// Scenarios describes each: what --scenario takes, its title, and what it stands for.
func Scenarios(list []result.Scenario) string {
	const indent = "    "
	var paragraphs [][]string
	for _, s := range list {
		lines := wrap(s.Name+": "+s.Title, Width, len(indent))
		for _, line := range wrap(s.About, Width-len(indent), 0) {
			lines = append(lines, indent+line)
		}
		paragraphs = append(paragraphs, lines)
	}
	return text(paragraphs...)
}
