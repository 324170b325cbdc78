package migrations

import (
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:generate go run ./internal/generate

// FS holds the migrations as files for goose, sql/00001_tables.sql and so on, for
// applications that run them with a goose of their own. The schema pglimit must exist,
// and the version table must not be the application's: with the table
// pglimit.goose_db_version, [Status] and [Up] see what was applied. Leave out the
// migration exclusion_range where the extension btree_gist is not allowed.
//
//go:embed sql/*.sql
var FS embed.FS

// exclusionRange is the migration that a database can do without.
const exclusionRange = "exclusion_range"

// Migration is one step of the schema, and whether a database has it.
type Migration struct {
	// Version orders the migrations: 1 is the first.
	Version int64 `json:"version"`
	// Name says what it brings, such as "tables". Empty if this release does not know the
	// migration: a newer one has applied it.
	Name string `json:"name"`
	// Optional is true of exclusion_range, which needs the extension btree_gist.
	Optional bool `json:"optional"`
	// Applied says whether the database has it.
	Applied bool `json:"applied"`
	// AppliedAt is when, by the database's clock. Zero if it is not applied.
	AppliedAt time.Time `json:"applied_at,omitzero"`
}

// file is the migration's place in FS.
func (m Migration) file() string {
	return fmt.Sprintf("sql/%05d_%s.sql", m.Version, m.Name)
}

// known are the migrations of this release, by version.
var known = list()

// list reads the versions and names from the embedded files' names. A test checks that
// these have the form that list expects.
func list() []Migration {
	var out []Migration
	entries, _ := FS.ReadDir("sql")
	for _, entry := range entries {
		number, name, _ := strings.Cut(strings.TrimSuffix(entry.Name(), ".sql"), "_")
		version, _ := strconv.ParseInt(number, 10, 64)
		out = append(out, Migration{Version: version, Name: name, Optional: name == exclusionRange})
	}
	return out
}

func latest() int64 { return known[len(known)-1].Version }

func find(version int64) (Migration, bool) {
	i := slices.IndexFunc(known, func(m Migration) bool { return m.Version == version })
	if i < 0 {
		return Migration{}, false
	}
	return known[i], true
}
