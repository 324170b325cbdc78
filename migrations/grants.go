package migrations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Purpose is what a role may do with the schema, for [Grants]. Its text is a value of the
// flag --for of "pglimit migrate grants".
type Purpose string

const (
	// ToDecide: take, peek, give back, reset and lease, with every strategy. A
	// service needs this.
	ToDecide Purpose = "decide"

	// ToDecideAndSweep: also run the cleanup on its schedule.
	ToDecideAndSweep Purpose = "decide-and-sweep"

	// ToRead: read the views, and peek.
	ToRead Purpose = "read"

	// ToLimit: change the limits in the table pglimit.limits, but not their history; and what ToRead allows.
	ToLimit Purpose = "limits"
)

// Purposes returns all purposes.
func Purposes() []Purpose { return []Purpose{ToDecide, ToDecideAndSweep, ToRead, ToLimit} }

type grant struct {
	rights string
	tables []table
}

// grants of a purpose. None includes the version table. Deciding needs all four rights on each table: a reset deletes
// rows, and locking a row takes UPDATE. Of the history of the limits it needs the version, not who changed what and
// why.
func (p Purpose) grants() ([]grant, error) {
	const write = "select, insert, update, delete"
	decide := []grant{
		{write, bucketTables}, {write, permitTables}, {"select", permitViews}, {write, instanceTables},
		{write, topTables}, {"select", topViews},
		{"select", limitTables[:1]}, {"select (id, at)", limitTables[1:]},
	}
	read := []grant{
		{"select", bucketTables}, {"select", permitTables}, {"select", instanceTables}, {"select", topTables}, {"select", views}, {"select", limitTables},
	}
	switch p {
	case ToDecide:
		return decide, nil
	case ToDecideAndSweep:
		return append(decide, grant{"select, insert, update", jobTables}), nil
	case ToRead:
		return read, nil
	case ToLimit:
		return append(read, grant{"insert, update, delete", limitTables[:1]}), nil
	}
	return nil, fmt.Errorf("migrations: the purpose is %q: it must be one of %q", string(p), Purposes())
}

// maxRoleBytes is the longest name that Postgres keeps whole.
const maxRoleBytes = 63

// Grants returns SQL that gives a role the rights that the purpose needs, and no others:
// the role cannot read or write the record of what is migrated, and cannot change the
// schema. Whether the role exists is not checked; its name is quoted.
//
// Run it as the owner of the schema, and again after a migration that adds tables or
// functions. The part for the strategy exclusion_range comes last, and is left out with
// [WithoutExclusionRange]; the other options change nothing.
func Grants(role string, purpose Purpose, opts ...Option) (string, error) {
	if err := checkRole(role); err != nil {
		return "", err
	}
	grants, err := purpose.grants()
	if err != nil {
		return "", err
	}
	to := " to " + pgx.Identifier{role}.Sanitize() + ";\n"
	var b strings.Builder
	fmt.Fprintf(&b, "-- What a role needs to %s with pglimit.\n", strings.ReplaceAll(string(purpose), "-", " "))
	b.WriteString("-- Run it as the owner of schema pglimit, and again after a migration that adds tables or functions.\n")
	b.WriteString("grant usage on schema pglimit" + to)
	for _, optional := range []bool{false, true} {
		if optional {
			if newOptions(opts).withoutExclusionRange {
				break
			}
			b.WriteString("\n-- Leave out the rest where the strategy exclusion_range is not migrated.\n")
		}
		for _, g := range grants {
			if names := qualified(g.tables, optional); len(names) > 0 {
				b.WriteString("grant " + g.rights + " on " + strings.Join(names, ", ") + to)
			}
		}
		if names := functionNames(optional); len(names) > 0 {
			b.WriteString("-- Every role may call functions, unless that was revoked. They act with the rights of their caller.\n")
			b.WriteString("grant execute on function\n    " + strings.Join(names, ",\n    ") + to)
		}
	}
	return b.String(), nil
}

func checkRole(role string) error {
	switch {
	case role == "":
		return errors.New("migrations: the role is empty: name one")
	case strings.ContainsRune(role, 0) || !utf8.ValidString(role):
		return fmt.Errorf("migrations: the role %q cannot be one: it must be valid UTF-8 without NUL", role)
	case len(role) > maxRoleBytes:
		// Postgres would cut the name off, and what is left may be another role's name.
		return fmt.Errorf("migrations: the role %q has %d bytes: Postgres keeps %d", role, len(role), maxRoleBytes)
	case role == "public" || role == "none":
		// Even in quotes, "public" means every role.
		return fmt.Errorf("migrations: %q is no role, but a word that Postgres keeps for itself: name a role", role)
	}
	return nil
}

// qualified returns the names, with the schema, of the optional tables or of the others.
func qualified(tables []table, optional bool) []string {
	var names []string
	for _, t := range tables {
		if t.optional == optional {
			names = append(names, "pglimit."+t.name)
		}
	}
	return names
}

// functionNames returns the functions that the migrations make: no two share a name. They are
// read from the migrations, so that no list can become outdated.
func functionNames(optional bool) (names []string) {
	for _, m := range known {
		if m.Optional != optional {
			continue
		}
		for _, f := range functionsOf(m.section(true)) {
			names = append(names, "pglimit."+f.name)
		}
	}
	slices.Sort(names)
	return names
}
