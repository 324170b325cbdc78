package postgres

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
)

// Differs is an expression of SQL: the names of what is missing or not as in this build. See DiffersArgs.
//
//go:embed differs.sql
var Differs string

// built has a line for each thing that the migrations make: its sum and its name. Before the name stands "?" if it
// comes with the optional exclusion_range, and "+" if it is the function of distributed tables, see
// migrations.Distribute. A test writes it (see docs/development.md).
//
//go:embed built.txt
var built string

// DiffersArgs are the arguments of Differs: of the functions only, or of everything, with what is optional or without.
func DiffersArgs(functions, optional bool) []any {
	lines := strings.Split(strings.TrimSpace(built), "\n")
	version, _ := strconv.ParseInt(lines[0], 10, 64)
	names, plain, distributed := []string{}, []string{}, []string{}
	for _, line := range lines[1:] {
		sum, name, _ := strings.Cut(line, " ")
		name, isOptional := strings.CutPrefix(name, "?")
		name, isDistributed := strings.CutPrefix(name, "+")
		switch i := slices.Index(names, name); {
		case functions && !strings.HasPrefix(name, "function ") || isOptional && !optional:
		case isDistributed && i >= 0:
			distributed[i] = sum
		case isDistributed:
			names, plain, distributed = append(names, name), append(plain, ""), append(distributed, sum)
		default:
			names, plain, distributed = append(names, name), append(plain, sum), append(distributed, sum)
		}
	}
	return []any{names, plain, version, distributed}
}
