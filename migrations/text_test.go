package migrations

import (
	"fmt"
	"strings"
	"testing"
)

func TestASpanHasItsMigrationsAndNoOthers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		span    Span
		want    string // the versions in it
		schema  bool   // it makes or removes the schema
		comment string
	}{
		{Span{}, "1 3 2", true, "-- The schema of pglimit"},
		{Span{Down: true}, "2 3 1", true, "-- Removes the schema"},
		{Span{From: 1, To: 3}, "1 3 2", true, "-- The schema of pglimit"},
		{Span{From: 2}, "3 2", false, "migrations 2 to 3. "},
		{Span{To: 2}, "1 2", true, "migrations 1 to 2. "},
		{Span{From: 3, To: 3, Down: true}, "3", false, "migration 3, undone. "},
		{Span{To: 2, Down: true}, "2 1", true, "migrations 1 to 2, undone. "},
		{Span{WithoutExclusionRange: true}, "1 3", true, "-- The schema of pglimit"},
	} {
		text, err := test.span.SQL()
		if err != nil {
			t.Errorf("%+v: %v", test.span, err)
			continue
		}
		var versions, recorded []string
		for line := range strings.Lines(text) {
			var version string
			if n, _ := fmt.Sscanf(line, "-- ---- %s ", &version); n == 1 {
				versions = append(versions, version)
			}
			if n, _ := fmt.Sscanf(line, "insert into pglimit.goose_db_version (version_id, is_applied, tstamp) values (%s", &version); n == 1 && version != "0," {
				recorded = append(recorded, strings.TrimSuffix(version, ","))
			}
			if n, _ := fmt.Sscanf(line, "delete from pglimit.goose_db_version where version_id = %s", &version); n == 1 {
				recorded = append(recorded, strings.TrimSuffix(version, ";"))
			}
		}
		if got := strings.Join(versions, " "); got != test.want || strings.Join(recorded, " ") != test.want {
			t.Errorf("%+v: has %s and records %s, want %s", test.span, got, recorded, test.want)
		}
		schema := "create schema if not exists pglimit;"
		if test.span.Down {
			schema = "drop schema pglimit;"
		}
		if strings.Contains(text, schema) != test.schema {
			t.Errorf("%+v: %q is in it: %t", test.span, schema, !test.schema)
		}
		if first, _, _ := strings.Cut(text, "\n"); !strings.Contains(first, test.comment) {
			t.Errorf("%+v: begins %s", test.span, first)
		}
	}
}

func TestFilesAreNamedAsTheToolsWantThem(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format Format
		span   Span
		want   string
	}{
		{GolangMigrate, Span{To: 2}, "000001_tables.up.sql 000001_tables.down.sql 000002_exclusion_range.up.sql 000002_exclusion_range.down.sql"},
		{Flyway, Span{}, "V1__tables.sql V2__exclusion_range.sql V3__functions.sql"},
		{Flyway, Span{From: 2, Down: true}, "U2__exclusion_range.sql U3__functions.sql"},
		{Atlas, Span{WithoutExclusionRange: true}, "00001_tables.sql 00003_functions.sql"},
		{Goose, Span{From: 3, To: 3}, "00003_functions.sql"},
	} {
		files, err := test.span.Files(test.format)
		if err != nil {
			t.Errorf("%s: %v", test.format, err)
		}
		var got []string
		for _, f := range files {
			got = append(got, f.Name)
			// Flyway and golang-migrate know placeholders of this form.
			if strings.Contains(f.Text, "${") || strings.Contains(f.Text, "+goose") != (test.format == Goose) {
				t.Errorf("%s %s has something that the tool takes for its own", test.format, f.Name)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %s, want %s", test.format, got, test.want)
		}
	}
}

func TestSpansAndFormatsThatThereAreNotAreRefused(t *testing.T) {
	t.Parallel()
	for want, span := range map[string]Span{
		"there is no migration 4: this release has 1 to 3": {From: 4},
		"there is no migration 4":                          {To: 4},
		"there is no migration -1":                         {From: -1},
		"from version 3 to 2 is no span":                   {From: 3, To: 2},
		"of migration 2 nothing is left":                   {From: 2, To: 2, WithoutExclusionRange: true},
	} {
		_, err := span.SQL()
		_, err2 := span.Files(Flyway)
		for _, err := range []error{err, err2} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %s", span, err, want)
			}
		}
	}
	if _, err := (Span{}).Files("liquibase"); err == nil || !strings.Contains(err.Error(), `"liquibase": it must be one of ["golang-migrate" "flyway" "atlas" "goose"]`) {
		t.Errorf("got %v", err)
	}
	for _, format := range []Format{GolangMigrate, Atlas, Goose} {
		if _, err := (Span{Down: true}).Files(format); err == nil || !strings.Contains(err.Error(), "has no files for down alone") {
			t.Errorf("%s: %v", format, err)
		}
	}
}
