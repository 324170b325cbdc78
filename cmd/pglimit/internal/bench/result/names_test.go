package result_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

var update = flag.Bool("update", false, "write the golden file")

// Scripts read the fields of --output json by their names.
func TestFieldsThatScriptsRead(t *testing.T) {
	t.Parallel()
	r := resulttest.WriteUp("published_exclusion")
	r.Runs[0].Series = r.Runs[0].Series[:1]
	r.Runs = append(r.Runs, result.Run{Strategy: "nothing is known of it"})
	for _, l := range []*result.Latency{&r.Runs[0].Latency, &r.Runs[0].GrantLatency, &r.Runs[0].DenialLatency} {
		l.Curve = l.Curve[:min(1, len(l.Curve))]
	}
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	const name = "testdata/report.json"
	if *update {
		if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(name); err != nil || text.String() != string(want) {
		t.Errorf("it differs from %s, %v (-update writes it):\n%s", name, err, &text)
	}
}
