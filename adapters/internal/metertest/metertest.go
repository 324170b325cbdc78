// Package metertest is what tests of the metrics adapters count: a strategy that does what the key says, and a use of a
// Limiter in every way that it counts by itself.
package metertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// noDB stands in for a *pgxpool.Pool; fake never uses it.
type noDB struct{ pglimit.Pool }

// fake is a strategy that does what the key says.
type fake string // its name

func (f fake) Name() string            { return string(f) }
func (fake) Check(*rate.Request) error { return nil }
func (fake) Rule() pglimit.Rule        { return pglimittest.Memory().Rule() }

func (fake) Take(_ context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		switch r.Key {
		case "denied":
			decisions[i] = pglimit.Decision{RetryAfter: time.Hour, ResetAfter: time.Hour}
		case "contended":
			decisions[i] = pglimit.Decision{Contended: true}
		case "broken":
			return nil, fmt.Errorf("%w: a bad row", pglimit.ErrNothingTaken)
		default:
			took, _ := time.ParseDuration(r.Key)
			time.Sleep(took) //nolint:forbidigo // in a bubble, whose clock it moves
			decisions[i] = pglimit.Decision{Allowed: true, Granted: r.Tokens}
		}
	}
	return decisions, nil
}

// NewLimiter returns a Limiter of a strategy of that name; change may change its Config.
func NewLimiter(t testing.TB, name, strategy string, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	c := pglimit.Config{Name: name, Limit: pglimit.PerMinute(600).WithBurst(20), Timeout: time.Minute, Memory: pglimit.Memory{TTL: time.Hour}}
	if change != nil {
		change(&c)
	}
	limiter, err := pglimit.New(noDB{}, fake(strategy), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close(context.Background()) })
	return limiter
}

// Use the limiter in every way that it counts by itself.
func Use(t testing.TB, limiter *pglimit.Limiter, times int) {
	t.Helper()
	for range times {
		for _, key := range []string{"granted", "granted", "denied", "contended"} {
			if _, err := limiter.Allow(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
		if _, err := limiter.Allow(t.Context(), "broken"); err == nil {
			t.Error("it is not broken")
		}
	}
}
