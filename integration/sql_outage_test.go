//go:build unix

package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A server that is frozen, and then one that is down, cost a caller on a *sql.DB no more than the
// timeout, and then nothing: the circuit opens, also where the driver waits on. When the server is
// back, decisions are.
func sqlServerFrozenAndDown(t *testing.T) {
	t.Parallel()
	const timeout = 400 * time.Millisecond
	server := newPatient(t, nil)
	var limiters []*pglimit.Limiter
	for _, driver := range sqlDrivers {
		for _, alone := range []bool{false, true} {
			limiter, err := pglimit.NewSQL(openSQL(t, driver.open, server.URL(""), 4), strategies.TokenBucket{}, pglimit.Config{
				Name: driver.name, Limit: plenty, Timeout: timeout, Combine: pglimit.Combine{Off: alone},
			})
			must(t, err)
			t.Cleanup(func() { _ = limiter.Close(context.Background()) })
			limiters = append(limiters, limiter)
		}
	}
	served := func(limiter *pglimit.Limiter) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed; d, err = limiter.Allow(t.Context(), "k") {
			if time.Now().After(deadline) {
				t.Fatalf("not served: %+v, %v", d, err)
			}
		}
	}
	opens := func(what string, limiter *pglimit.Limiter) {
		t.Helper()
		deadline := time.Now().Add(2 * time.Minute)
		for limiter.Stats().Open == 0 {
			began := time.Now()
			_, err := limiter.Allow(t.Context(), "k")
			if took := time.Since(began); !errors.Is(err, pglimit.ErrUnavailable) || took > time.Minute {
				t.Fatalf("%s: after %v: %v", what, took, err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: it does not open", what)
			}
		}
	}
	for _, limiter := range limiters {
		served(limiter)
	}
	thaw := server.freeze(t)
	for _, limiter := range limiters {
		opens("frozen", limiter)
	}
	thaw()
	for _, limiter := range limiters {
		served(limiter)
	}
	server.stop(t)
	for _, limiter := range limiters {
		opens("down", limiter)
	}
	server.start(t)
	for _, limiter := range limiters {
		served(limiter)
	}
}
