package pglimit_test

import (
	"testing"
	"testing/synctest"

	"github.com/pglimit/ratelimit/pglimit"
)

// makeBusy makes the key busy: the fifth request asks for a lease.
func makeBusy(t *testing.T, limiter *pglimit.Limiter) {
	t.Helper()
	for range 5 {
		go func() { _, _ = limiter.Allow(t.Context(), "a") }()
	}
	synctest.Wait()
}
