package text

import (
	"slices"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"
)

func TestFaultsInWords(t *testing.T) {
	t.Parallel()
	all := compare.Faults{Over: 4, TooMany: 3, NotDue: 2, Deadlocks: 1, Failed: 10, Requests: 200}
	for _, c := range []struct {
		faults  compare.Faults
		verdict bool
		want    []string
	}{
		{all, false, []string{"OVER by 4", "2 denials not due", "3 too many granted", "1 deadlock", "5 % failed"}},
		{all, true, []string{"3 too many granted", "1 deadlock", "5 % failed"}},
		{compare.Faults{Failed: 2, Requests: 1000}, true, []string{"2 failed"}},
		{compare.Faults{Requests: 1000}, false, nil},
	} {
		if got := faultWords(c.faults, c.verdict); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.faults, got, c.want)
		}
	}
}
