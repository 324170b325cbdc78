package pglimit_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// GrantedTokens has what the limiter's own limit bounds, in tokens, and nothing else.
func TestTokensThatTheLimitBounds(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10), OnError: pglimit.FailOpen, Timeout: pglimit.NoTimeout})
	if err != nil {
		t.Fatal(err)
	}
	var granted, refundable pglimit.Decision
	take := func(r pglimit.Request) func() error {
		return func() error {
			ds, err := limiter.DoEach(t.Context(), r)
			if err == nil {
				granted = ds[0]
			}
			return err
		}
	}
	allow := func(d pglimit.Decision, err error) error {
		granted = d
		return err
	}
	twice := pglimit.PerSecond(20)
	for _, test := range []struct {
		what              string
		act               func() error
		granted, refunded int64
	}{
		{"Allow", func() error { return allow(limiter.Allow(t.Context(), "a")) }, 1, 0},
		{"AllowN", func() error { return allow(limiter.AllowN(t.Context(), "b", 5)) }, 5, 0},
		{"a part", take(pglimit.Request{Key: "b", Tokens: 9, Unit: 1}), 5, 0},
		{"a denial", func() error { return allow(limiter.AllowN(t.Context(), "b", 5)) }, 0, 0},
		{"Peek", func() error { return allow(limiter.Peek(t.Context(), "c")) }, 0, 0},
		{"its own limit by name", func() error {
			return allow(limiter.Do(t.Context(), pglimit.Request{Key: "d", Limit: pglimit.PerSecond(10), Tokens: 1}))
		}, 1, 0},
		{"another limit", func() error {
			return allow(limiter.Do(t.Context(), pglimit.Request{Key: "d", Limit: twice, Tokens: 1}))
		}, 0, 0},
		{"another limiter", take(pglimit.Request{Limiter: "other", Key: "d", Tokens: 1}), 0, 0},
		{"an ID", func() error { return allow(limiter.Do(t.Context(), pglimit.Request{Key: "e", Tokens: 1, ID: "id"})) }, 0, 0},
		{"ahead of its time", take(pglimit.Request{Key: "f", Tokens: 1, Ahead: time.Second}), 1, 0},
		{"Refund", func() error { return limiter.Refund(t.Context(), granted, 1) }, 0, 1},
		{"all of the burst", take(pglimit.Request{Key: "g", Tokens: 10}), 10, 0},
		{"what is not there yet", take(pglimit.Request{Key: "g", Tokens: 2, Ahead: time.Second}), 0, 0},
		{"a burst to settle", take(pglimit.Request{Key: "h", Tokens: 10}), 10, 0},
		{"Settle for less", func() error { return allow(limiter.Settle(t.Context(), granted, 4)) }, 0, 6},
		{"SetLimit", func() error {
			return errors.Join(limiter.SetLimit(twice), allow(limiter.Do(t.Context(), pglimit.Request{Key: "i", Limit: pglimit.PerSecond(10), Tokens: 1})))
		}, 0, 0},
		{"the new limit", func() error { return allow(limiter.Allow(t.Context(), "j")) }, 1, 0},
		{"to be refunded", func() (err error) {
			refundable, err = limiter.Allow(t.Context(), "j")
			return err
		}, 1, 0},
		{"a transaction", func() error { return allow(limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "k")) }, 0, 0},
		{"OnError", func() error {
			memory.Fail(pglimit.ErrUnavailable)
			return allow(limiter.Allow(t.Context(), "l"))
		}, 0, 0},
		{"a Refund that fails", func() error {
			if err := limiter.Refund(t.Context(), refundable, 1); !errors.Is(err, pglimit.ErrUnavailable) {
				return fmt.Errorf("the error is %w", err)
			}
			return nil
		}, 0, 0},
	} {
		before := limiter.Stats()
		if err := test.act(); err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
		if s := limiter.Stats().Since(before); s.GrantedTokens != test.granted || s.RefundedTokens != test.refunded {
			t.Errorf("%s: %d granted and %d refunded, want %d and %d: %+v", test.what, s.GrantedTokens, s.RefundedTokens, test.granted, test.refunded, granted)
		}
	}
}

func TestALimiterSaysItsBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config  pglimit.Config
		timeout time.Duration
		waiting int
	}{
		{pglimit.Config{}, time.Second, 1 << 16},
		{pglimit.Config{Timeout: time.Minute, MaxWaiting: 7}, time.Minute, 7},
		{pglimit.Config{Timeout: pglimit.NoTimeout}, pglimit.NoTimeout, 1 << 16},
	} {
		test.config.Name, test.config.Limit = "api", pglimit.PerSecond(1)
		limiter, err := pglimittest.New(pglimittest.Memory(), test.config)
		if err != nil {
			t.Fatal(err)
		}
		if limiter.Config().Timeout != test.timeout || limiter.Config().MaxWaiting != test.waiting {
			t.Errorf("%v, %d of %+v", limiter.Config().Timeout, limiter.Config().MaxWaiting, test.config)
		}
	}
}
