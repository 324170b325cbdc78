// Package schema says how a database differs from what the migrations of this build make.
package schema

import (
	_ "embed"
	"strconv"
	"strings"
)

// Differs is an expression of SQL: the names of what is missing or not as in this build. See Args.
//
//go:embed differs.sql
var Differs string

// built has a line for each thing that the migrations make: its sum and its name, with "?" before the name if it comes with
// the optional exclusion_range. A test writes it (see docs/development.md).
//
//go:embed built.txt
var built string

// Args are the arguments of Differs: of the functions only, or of everything, with what is optional or without.
func Args(functions, optional bool) []any {
	lines := strings.Split(strings.TrimSpace(built), "\n")
	version, _ := strconv.ParseInt(lines[0], 10, 64)
	names, sums := []string{}, []string{}
	for _, line := range lines[1:] {
		sum, name, _ := strings.Cut(line, " ")
		name, isOptional := strings.CutPrefix(name, "?")
		if functions && !strings.HasPrefix(name, "function ") || isOptional && !optional {
			continue
		}
		names, sums = append(names, name), append(sums, sum)
	}
	return []any{names, sums, version}
}
