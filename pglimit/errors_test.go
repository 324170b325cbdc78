package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
)

func TestCauseOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err   error
		cause pglimit.Cause
		text  string
	}{
		{nil, pglimit.CauseOther, "other"},
		{errDown, pglimit.CauseOther, "other"},
		{context.Canceled, pglimit.CauseOther, "other"},
		{pglimit.ErrClosed, pglimit.CauseClosed, "closed"},
		{fmt.Errorf("%w: %w", pglimit.ErrClosed, pglimit.ErrUnavailable), pglimit.CauseClosed, "closed"},
		{pglimit.ErrUnavailable, pglimit.CauseUnavailable, "unavailable"},
		{fmt.Errorf("%w: given up: %w", pglimit.ErrUnavailable, context.Canceled), pglimit.CauseUnavailable, "unavailable"},
		{context.DeadlineExceeded, pglimit.CauseTimeout, "timeout"},
		{errors.Join(pglimit.ErrUnavailable, context.DeadlineExceeded), pglimit.CauseTimeout, "timeout"},
		{circuit.ErrOpen, pglimit.CauseBreaker, "breaker"},
		{pglimit.ErrOverloaded, pglimit.CauseOverloaded, "overloaded"},
		{pglimit.ErrNotMigrated, pglimit.CauseNotMigrated, "not_migrated"},
		{pglimit.ErrPermission, pglimit.CausePermission, "permission"},
		{pglimit.ErrSetting, pglimit.CauseSetting, "setting"},
		{pglimit.ErrPooler, pglimit.CausePooler, "pooler"},
		{pglimit.ErrNothingTaken, pglimit.CauseRefused, "refused"},
		{fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken), pglimit.CauseRefused, "refused"},
	} {
		for _, err := range []error{test.err, fmt.Errorf("request 3: %w", test.err), errors.Join(test.err)} {
			if got := pglimit.CauseOf(err); got != test.cause || got.String() != test.text {
				t.Errorf("%v: %v, want %v", err, got, test.text)
			}
		}
	}
	for unknown, text := range map[pglimit.Cause]string{-1: "Cause(-1)", 11: "Cause(11)", 99: "Cause(99)"} {
		if unknown.String() != text {
			t.Errorf("%v, want %s", unknown, text)
		}
	}
}
