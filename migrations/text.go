package migrations

import (
	"fmt"
	"slices"
	"strings"
)

// SQL is all of the migrations as one text, for people with another tool than
// goose: up makes in an empty database what [Up] makes, the record of what is
// applied included, so that [Status], [Up] and [Down] know about it; down undoes
// that. It has no transaction of its own and nothing that only psql understands.
//
// What the strategy exclusion_range needs stands apart, in up at the end and in
// down at the beginning, under a comment that says when to leave it out.
func SQL(up bool) (string, error) {
	var steps []Migration
	for _, optional := range []bool{false, true} {
		for _, m := range known {
			if m.Optional == optional {
				steps = append(steps, m)
			}
		}
	}
	if !up {
		slices.Reverse(steps)
	}

	var b strings.Builder
	if up {
		b.WriteString("-- The schema of pglimit, a rate limiter on PostgreSQL. Run it once.\n\n" +
			"-- Leave this line out where an administrator has made the schema.\ncreate schema if not exists pglimit;\n\n" +
			createVersionTable)
	} else {
		b.WriteString("-- Removes the schema of pglimit and all that is in it.\n")
	}
	for i, m := range steps {
		upText, downText, err := sections(m)
		if err != nil {
			return "", err
		}
		// The border of the optional part.
		switch {
		case up && m.Optional && !steps[i-1].Optional:
			b.WriteString("\n-- ======== Optional, to the end ========\n" +
				"-- Leave this out where the extension btree_gist is not allowed: the strategy\n" +
				"-- exclusion_range needs it, the others do not.\n")
		case !up && m.Optional && i == 0:
			b.WriteString("\n-- ======== Optional, to the next such line ========\n" +
				"-- Leave this out if exclusion_range was left out.\n")
		case !up && !m.Optional && i > 0 && steps[i-1].Optional:
			b.WriteString("\n-- ======== End of the optional part ========\n")
		}
		if up {
			fmt.Fprintf(&b, "\n-- ---- %d %s ----\n%s\n", m.Version, m.Name, upText)
			fmt.Fprintf(&b, "insert into %s (version_id, is_applied, tstamp) values (%d, true, now() at time zone 'UTC');\n", versionTable, m.Version)
		} else {
			fmt.Fprintf(&b, "\n-- ---- %d %s ----\n%s\n", m.Version, m.Name, downText)
			fmt.Fprintf(&b, "delete from %s where version_id = %d;\n", versionTable, m.Version)
		}
	}
	if !up {
		b.WriteString("\ndrop table " + versionTable + ";\ndrop schema pglimit;\n")
	}
	return b.String(), nil
}

// sections are the two halves of a migration without goose's annotations. What
// stands above the first, the comment that says what it is, goes with up.
func sections(m Migration) (up, down string, err error) {
	text, err := FS.ReadFile(m.file())
	if err != nil {
		return "", "", fail("cannot read migration "+m.Name, err)
	}
	section := &up
	for line := range strings.Lines(string(text)) {
		annotation, ok := strings.CutPrefix(strings.TrimSpace(line), "-- +goose ")
		switch {
		case !ok:
			*section += line
		case annotation == "Down":
			section = &down
		}
	}
	return strings.TrimSpace(up), strings.TrimSpace(down), nil
}
