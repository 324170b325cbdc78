package migrations

import (
	"fmt"
	"slices"
)

// Format is the tool for which [Span.Files] writes. Every tool keeps a table of the
// versions that it applied. Give these files a version table of their own: not the
// application's, because versions begin with 1 here, and not pglimit.goose_db_version,
// which the files write by themselves.
type Format string

const (
	// GolangMigrate has two files for each version: 000001_tables.up.sql and
	// 000001_tables.down.sql.
	GolangMigrate Format = "golang-migrate"
	// Flyway has V1__tables.sql, and U1__tables.sql for down, which its community
	// edition does not run.
	Flyway Format = "flyway"
	// Atlas has 00001_tables.sql and finds out by itself how to undo it. Run "atlas
	// migrate hash" on the folder. Tools that run files by name can use them too.
	Atlas Format = "atlas"
	// Goose has 00001_tables.sql, with a section for up and one for down.
	Goose Format = "goose"
)

// Formats returns all formats.
func Formats() []Format { return []Format{GolangMigrate, Flyway, Atlas, Goose} }

// File is a file to be written for another tool.
type File struct {
	Name string // such as V1__tables.sql
	Text string
}

// Files returns the migrations of the span, each as one file, or as two where the tool
// has a file for each direction. A file does what [Span.SQL] of its version does, so the
// file of version 1 makes the schema. Down is for Flyway only: GolangMigrate and Goose
// get both directions anyhow.
//
// The file of exclusion_range may be left out where the extension btree_gist is not
// allowed.
func (s Span) Files(format Format) ([]File, error) {
	steps, err := Span{From: s.From, To: s.To, WithoutExclusionRange: s.WithoutExclusionRange}.steps()
	if err != nil {
		return nil, err
	}
	if s.Down && format != Flyway {
		return nil, fmt.Errorf("migrations: %s has no files for down alone", format)
	}
	slices.SortFunc(steps, func(a, b Migration) int { return int(a.Version - b.Version) })
	var files []File
	for _, m := range steps {
		up, _ := Span{From: m.Version, To: m.Version}.SQL() // one that there is
		down, _ := Span{From: m.Version, To: m.Version, Down: true}.SQL()
		name := fmt.Sprintf("%05d_%s.sql", m.Version, m.Name)
		switch {
		case format == GolangMigrate:
			name := fmt.Sprintf("%06d_%s", m.Version, m.Name)
			files = append(files, File{name + ".up.sql", up}, File{name + ".down.sql", down})
		case format == Flyway && s.Down:
			files = append(files, File{fmt.Sprintf("U%d__%s.sql", m.Version, m.Name), down})
		case format == Flyway:
			files = append(files, File{fmt.Sprintf("V%d__%s.sql", m.Version, m.Name), up})
		case format == Atlas:
			files = append(files, File{name, up})
		case format == Goose:
			// One statement for each direction: goose would split at semicolons inside of
			// functions.
			files = append(files, File{name, "-- +goose Up\n-- +goose StatementBegin\n" + up + "-- +goose StatementEnd\n\n" +
				"-- +goose Down\n-- +goose StatementBegin\n" + down + "-- +goose StatementEnd\n"})
		default:
			return nil, fmt.Errorf("migrations: there is no format %q: it must be one of %q", format, Formats())
		}
	}
	return files, nil
}
