package pglimit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// trips are what the strategy was asked, with a "!" behind impatient requests.
func (f *fake) trips() (trips []string) {
	for i := range f.taken {
		trip := f.asked(i)
		if f.taken[i][0].Impatient {
			trip += "!"
		}
		trips = append(trips, trip)
	}
	return trips
}

// Without combining, a request waits for its row from the beginning. Several do not, as a call
// for several rows never waits: each asks alone, and those whose rows are held wait last.
func TestAHeldRowWithoutCombining(t *testing.T) {
	t.Parallel()
	errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
	s := &fake{}
	s.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		if (requests[0].Impatient || len(requests) > 1) && requests[0].Key == "a" {
			return nil, errLocked
		}
		return grantAll(ctx, requests)
	}
	guarded := newLimiter(t, s, func(c *pglimit.Config) { c.Breaker.Off = false })
	for _, test := range []struct {
		limiter *pglimit.Limiter
		keys    []string
		want    []string
	}{
		{guarded, []string{"a"}, []string{"a:1"}},
		{guarded, []string{"b"}, []string{"b:1"}},
		{guarded, []string{"a", "b"}, []string{"a:1 b:1", "a:1!", "b:1!", "a:1"}},
		{newLimiter(t, s, nil), []string{"a"}, []string{"a:1"}},
	} {
		s.taken = nil
		var requests []pglimit.Request
		for _, key := range test.keys {
			requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
		}
		decisions, err := test.limiter.DoEach(t.Context(), requests...)
		if err != nil || slices.ContainsFunc(decisions, func(d pglimit.Decision) bool { return !d.Allowed }) {
			t.Errorf("%q: %+v, %v", test.keys, decisions, err)
		}
		if got := s.trips(); !slices.Equal(got, test.want) {
			t.Errorf("%q: asked %q, want %q", test.keys, got, test.want)
		}
	}
}
