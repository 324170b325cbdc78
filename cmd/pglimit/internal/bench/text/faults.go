package text

import "github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/compare"

// faultWords name each fault, the worst first. What the audit says in its verdict is left out
// if verdict says so.
func faultWords(f compare.Faults, verdict bool) (words []string) {
	add := func(n int64, text string) {
		if n > 0 {
			words = append(words, text)
		}
	}
	if !verdict {
		add(f.Over, "OVER by "+Count(f.Over))
		add(f.NotDue, Plural(f.NotDue, "denial")+" not due")
	}
	add(f.TooMany, Count(f.TooMany)+" too many granted")
	add(f.Deadlocks, Plural(f.Deadlocks, "deadlock"))
	failed := Count(f.Failed)
	if share := f.FailedShare(); share >= 0.01 {
		failed = Share(share)
	}
	add(f.Failed, failed+" failed")
	return words
}
