package result_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

// written has a file with that text.
func written(t *testing.T, text string) (name string) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "run.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestFileHasAllOfTheReport(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]result.Report{
		"suite": resulttest.Report(), "write-up": resulttest.WriteUp(), "capacity": resulttest.Capacity(),
	} {
		var text strings.Builder
		if err := want.Write(&text); err != nil {
			t.Fatal(err)
		}
		if want.Runs == nil {
			want.Runs = []result.Run{}
		}
		got, err := result.ReadFile(written(t, text.String()))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, and what was read is not what was written", name, err)
		}
	}
}

// A script can loop over the runs of a report that has none, and reads an address as it is.
func TestFileIsForScripts(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	if err := (result.Report{Command: "pglimit bench --fail 'p99<5ms' && echo"}).Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"runs": []`, `"command": "pglimit bench --fail 'p99<5ms' && echo"`, "\n  \"started\""} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s\nhas no %s", &text, want)
		}
	}
	if strings.Contains(text.String(), "capacity") {
		t.Errorf("%s\nhas a capacity", &text)
	}
}

func TestErrorsOfAFileNameIt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":           `is no report of "pglimit bench --output json"`,
		"pglimit":    `is no report of "pglimit bench --output json"`,
		`[]`:         `is no report of "pglimit bench --output json"`,
		`{"runs":1}`: `is no report of "pglimit bench --output json"`,
		`{}`:         `has no runs: it must be what "pglimit bench --output json" has printed`,
		`{"runs":[],"scenarios":[{"name":"a","limit":"1/1s","durability":"relaxed"}]}`: "has no runs",
		`{"runs":[],"scenarios":[{"name":"a"}]}`:                                       `is no report of "pglimit bench --output json": limit: `,
		`{"runs":[{"strategy":"upsert"}]}`:                                             "names no scenarios: it is of an earlier pglimit, run the bench again",
	} {
		name := written(t, text)
		if _, err := result.ReadFile(name); err == nil || !strings.HasPrefix(err.Error(), name+" ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s %s", text, err, name, want)
		}
	}
	name := filepath.Join(t.TempDir(), "none.json")
	if _, err := result.ReadFile(name); !os.IsNotExist(err) || !strings.Contains(err.Error(), name) {
		t.Errorf("%v, want that there is no %s", err, name)
	}
}
