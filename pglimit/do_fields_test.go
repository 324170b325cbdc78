package pglimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A request that waits may have a limit and a Limiter name of its own.
func TestDoWaitsUnderALimitOfTheRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := waiting(t, newReserving(), nil)
		r := pglimit.Request{Limiter: "other", Key: "k", Limit: pglimit.Every(time.Minute), Tokens: 1, MaxWait: time.Hour}
		began := time.Now()
		for range 3 {
			if d, err := limiter.Do(t.Context(), r); err != nil || !d.Allowed || d.Limiter != "other" || d.Limit != r.Limit {
				t.Errorf("%+v, %v", d, err)
			}
		}
		if took := time.Since(began); took < 2*time.Minute || took > 2*time.Minute+time.Second {
			t.Errorf("three of one a minute took %v", took)
		}
	})
}

// Fields that do not go together are refused.
func TestFieldsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	limiter, err := pglimittest.New(pglimittest.Memory(), config(func(c *pglimit.Config) { c.MaxWait = time.Hour }))
	if err != nil {
		t.Fatal(err)
	}
	do := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.Do(ctx, r)
		return err
	}
	each := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.DoEach(ctx, r)
		return err
	}
	all := func(ctx context.Context, r pglimit.Request) error {
		_, err := limiter.DoAll(ctx, r)
		return err
	}
	for _, test := range []struct {
		ask   func(context.Context, pglimit.Request) error
		r     pglimit.Request
		field string
	}{
		{each, pglimit.Request{MaxWait: 1}, "MaxWait"}, {all, pglimit.Request{MaxWait: 1}, "MaxWait"},
		{do, pglimit.Request{MaxWait: 1, Ahead: 1}, "MaxWait"}, {do, pglimit.Request{MaxWait: 1, ID: "id"}, "MaxWait"}, {do, pglimit.Request{MaxWait: 1, Unit: 2}, "MaxWait"},
		{do, pglimit.Request{ID: "id", Ahead: 1}, "ID"}, {all, pglimit.Request{ID: "id"}, "ID"},
	} {
		test.r.Key, test.r.Tokens = "k", 4
		err := test.ask(t.Context(), test.r)
		if refused := (*pglimit.RequestError)(nil); !errors.As(err, &refused) || refused.Field != test.field {
			t.Errorf("%+v: %v, want %s", test.r, err, test.field)
		}
	}
	if trips := limiter.Stats().RoundTrips; trips != 0 {
		t.Errorf("%d round trips", trips)
	}
}
