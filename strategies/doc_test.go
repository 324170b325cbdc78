package strategies_test

import (
	"testing"

	"github.com/pglimit/ratelimit/strategies"
)

func TestByNameFindsEachAndListsThemOtherwise(t *testing.T) {
	t.Parallel()
	for _, s := range strategies.All() {
		if found, err := strategies.ByName(s.Name()); err != nil || found != s {
			t.Errorf("ByName(%q) is %v, %v", s.Name(), found, err)
		}
	}
	_, err := strategies.ByName("leaky")
	want := `strategies: there is no strategy "leaky", only token_bucket, upsert, for_update_nowait, exclusion_range, sliding_window, sliding_log, warm_up`
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
}
