package pglimit_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/pglimit"
)

// A role with a lock_timeout of its own ends even a patient call: its callers hear of it.
func TestAHeldKeyThatEvenAPatientCallGivesUpOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
		limiter := newLimiter(t, &fake{take: fail(errLocked)}, func(c *pglimit.Config) { c.Combine.Off = false })
		for range 3 {
			if _, err := limiter.Allow(t.Context(), "a"); !errors.Is(err, pglimit.ErrLocked) {
				t.Error(err)
			}
		}
		if stats := limiter.Stats(); stats.LostTokens != 0 || stats.RoundTrips != 6 {
			t.Errorf("%+v", stats)
		}
	})
}
