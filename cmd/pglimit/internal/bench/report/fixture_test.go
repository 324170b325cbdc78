package report_test

import (
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result/resulttest"
)

const headline = "Take token_bucket"

var advice = []string{
	"Take token_bucket: it is the fastest in 4 of 5 scenarios, and exact in all of them.",
	"for_update_nowait is only for code that must not change. How sure this is: 2 rounds, at most 4 % apart.",
}

// seven strategies in the write-up's experiment: the most that a report of it shows.
func seven() result.Report {
	return resulttest.WriteUp("token_bucket", "upsert", "for_update_nowait", "exclusion_range",
		"published_for_update_nowait", "published_exclusion", "published_upsert")
}
