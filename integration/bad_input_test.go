package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A lease that makes no sense is refused with the name of the field, and nothing is set
// aside or settled. (Requests and refunds: strategytest.)
func TestLeasesRefuseBadInput(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	execute(t, pool, stoppedClock)
	held := leased(t, pool, "k", hours.WithBurst(10), 4, time.Hour)
	row := func() string {
		return query[string](t, pool, "select string_agg(b::text, ' ') from pglimit.token_bucket b")
	}
	before := row()
	for name, test := range map[string]struct {
		field string
		spoil func(*pglimit.LeaseRequest)
	}{
		"more spent than was leased": {"Spent", func(r *pglimit.LeaseRequest) { r.Spent = 5 }},
		"spent, and no lease":        {"Spent", func(r *pglimit.LeaseRequest) { r.Settle, r.Spent = pglimit.Lease{}, 1 }},
		"negative spent":             {"Spent", func(r *pglimit.LeaseRequest) { r.Spent = -1 }},
		"a negative lease":           {"Spent", func(r *pglimit.LeaseRequest) { r.Settle.Tokens = -1 }},
		"negative tokens":            {"Tokens", func(r *pglimit.LeaseRequest) { r.Tokens = -1 }},
		"no share":                   {"Share", func(r *pglimit.LeaseRequest) { r.Share = 0 }},
		"negative share":             {"Share", func(r *pglimit.LeaseRequest) { r.Share = -1 }},
		"no time":                    {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = 0 }},
		"negative time":              {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = -time.Second }},
		"too long":                   {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = time.Hour + 1 }},
		"no key":                     {"Key", func(r *pglimit.LeaseRequest) { r.Key = "" }},
		"no limiter":                 {"Limiter", func(r *pglimit.LeaseRequest) { r.Limiter = "" }},
	} {
		r := pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: hours.WithBurst(10), Tokens: 1, Share: 1, TTL: time.Minute, Settle: held}
		test.spoil(&r)
		_, err := s.Lease(t.Context(), on(pool), r)
		var bad *pglimit.RequestError
		if !errors.As(err, &bad) || bad.Field != test.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	r := pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: hours.WithBurst(-1), Share: 1, TTL: time.Minute, Settle: held}
	var bad *pglimit.LimitError
	if _, err := s.Lease(t.Context(), on(pool), r); !errors.As(err, &bad) || bad.Field != "Burst" {
		t.Errorf("a negative burst: the error is %v", err)
	}
	if after := row(); after != before {
		t.Errorf("it was %s, and is %s", before, after)
	}
}

// exclusion_range cannot keep a burst, and refuses it whatever it is asked, also beside
// requests that are good.
func TestExclusionRangeRefusesABurst(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.ExclusionRange{}
	burst, good := hours.WithBurst(2), ask("k", hours, 1, 1)
	for name, call := range map[string]func() error{
		"a take": func() error {
			_, err := s.Take(t.Context(), on(pool), []pglimit.Request{good, ask("l", burst, 1, 1)})
			return err
		},
		"a peek": func() error {
			_, err := s.Take(t.Context(), on(pool), []pglimit.Request{ask("k", burst, 0, 1)})
			return err
		},
		"a refund": func() error {
			return s.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: ask("k", burst, 1, 1), At: time.Now()}})
		},
		"a limiter": func() error {
			_, err := pglimit.New(pool, s, pglimit.Config{Name: "test", Limit: burst})
			return err
		},
	} {
		var bad *pglimit.LimitError
		if err := call(); !errors.As(err, &bad) || bad.Field != "Burst" {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if !take(t, pool, s, "k", hours).Allowed {
		t.Error("a call that was refused took")
	}
}
