package migrations

import (
	"fmt"
	"slices"
	"strings"
)

// Span selects migrations to be written as SQL. The zero value is all of them, up.
type Span struct {
	// From and To are the first and the last version. 0 stands for the first and the
	// last of this release.
	From, To int64
	// Down undoes the migrations, the last one first.
	Down bool
	// WithoutExclusionRange leaves out the strategy exclusion_range.
	WithoutExclusionRange bool
}

// SQL returns the migrations of the span as one text, for people with another tool than goose. Up, the migrations
// before the span must be applied; down, those after it must be undone. In an empty database, all of them make what
// [Up] makes. That includes the record of what is applied, so that [Status], [Up] and [Down] know about it. Down undoes
// that. The text has no transaction of its own and nothing that only psql understands.
//
// The part for the strategy exclusion_range stands apart, in up at the end and in down at
// the beginning, under a comment that says when to leave it out.
func (s Span) SQL() (string, error) {
	steps, err := s.steps()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if whole := s.From <= 1 && (s.To == 0 || s.To == latest()); whole && s.Down {
		b.WriteString("-- Removes the schema of pglimit and all that is in it.\n")
	} else if whole {
		b.WriteString("-- The schema of pglimit, a rate limiter on PostgreSQL. Run it once.\n")
	} else {
		fmt.Fprintf(&b, "-- Of the schema of pglimit, a rate limiter on PostgreSQL: %s. Run it once.\n", s)
	}
	b.WriteString(bindNames)
	if !s.Down && s.From <= 1 {
		b.WriteString("\n-- Leave this line out where an administrator has made the schema.\ncreate schema if not exists pglimit;\n\n" +
			createVersionTable)
	}
	for i, m := range steps {
		if m.Optional {
			b.WriteString("\n-- ======== Optional: the strategy exclusion_range ========\n" +
				"-- Leave this out where the extension btree_gist is not allowed: this strategy\n" +
				"-- needs it, the others do not.\n")
		}
		fmt.Fprintf(&b, "\n-- ---- %d %s ----\n%s\n", m.Version, m.Name, m.section(!s.Down))
		if s.Down {
			fmt.Fprintf(&b, "delete from %s where version_id = %d;\n", versionTable, m.Version)
		} else {
			fmt.Fprintf(&b, "insert into %s (version_id, is_applied, tstamp) values (%d, true, now() at time zone 'UTC');\n", versionTable, m.Version)
		}
		if m.Optional && i < len(steps)-1 {
			b.WriteString("\n-- ======== End of the optional part ========\n")
		}
	}
	if s.Down && s.From <= 1 {
		b.WriteString("\ndrop table " + versionTable + ";\ndrop schema pglimit;\n")
	}
	b.WriteString("\nselect pg_catalog.set_config('search_path', pg_catalog.current_setting('pglimit.search_path', true), true);\n")
	return b.String(), nil
}

// bindNames begins a text. The statement at its end puts the search_path back, for what the tool writes
// in the same transaction.
const bindNames = `
-- In a transaction, names bind in pg_catalog from here to the end, whatever others have put into public.
select pg_catalog.set_config('pglimit.search_path', pg_catalog.current_setting('search_path'), true);
select pg_catalog.set_config('search_path', '', true);
`

// String returns text such as "migrations 2 to 3".
func (s Span) String() string {
	from, to := max(s.From, 1), s.To
	if to == 0 {
		to = latest()
	}
	text := fmt.Sprintf("migrations %d to %d", from, to)
	if from == to {
		text = fmt.Sprintf("migration %d", from)
	}
	if s.Down {
		text += ", undone"
	}
	return text
}

// steps are the migrations of the span in the order in which they are run.
func (s Span) steps() ([]Migration, error) {
	for _, version := range []int64{s.From, s.To} {
		if _, ok := find(version); !ok && version != 0 {
			return nil, fmt.Errorf("migrations: there is no migration %d: this release has 1 to %d", version, latest())
		}
	}
	if s.To != 0 && s.From > s.To {
		return nil, fmt.Errorf("migrations: from version %d to %d is no span: the first must not be above the last, also for down", s.From, s.To)
	}
	applied := appliedList{} // as if the migrations outside the span were applied
	for _, m := range known {
		if m.Version < s.From || s.To != 0 && m.Version > s.To {
			applied = append(applied, Migration{Version: m.Version})
		}
	}
	steps := options{withoutExclusionRange: s.WithoutExclusionRange}.pending(applied)
	if len(steps) == 0 {
		return nil, fmt.Errorf("migrations: of %s nothing is left without exclusion_range", s)
	}
	if s.Down {
		slices.Reverse(steps)
	}
	return steps, nil
}

// section returns one half of a migration, without goose's annotations. The comment above
// the first annotation, which says what the migration is, goes with up.
func (m Migration) section(up bool) string {
	text, _ := FS.ReadFile(m.file()) // it is embedded
	var out strings.Builder
	inUp := true
	for line := range strings.Lines(string(text)) {
		annotation, ok := strings.CutPrefix(strings.TrimSpace(line), "-- +goose ")
		switch {
		case ok && annotation == "Down":
			inUp = false
		case !ok && inUp == up:
			out.WriteString(line)
		}
	}
	return strings.TrimSpace(out.String())
}
