package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// A grant without a time cannot be audited, and may be why others are denied. A denial
// without one is not audited, and excuses nothing.
func TestAnswersWithoutATime(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{true, false} {
		r := newRecorder(newBudget(100, 1))
		add(&r.history, 0, granted, 0)
		r.decision(0, 0, &pglimit.Decision{Allowed: allowed}, 0, 0, true)
		add(&r.history, 0, denied, 150)
		got := judge([]*history{&r.history}, 1, pglimit.Every(100*time.Millisecond))
		if lost := got.KeysWithLostAnswers == 1; lost != allowed || got.DenialsNotDue != map[bool]int64{true: 0, false: 1}[allowed] || got.Audited != 2 {
			t.Errorf("allowed: %v: %+v", allowed, got)
		}
	}
}

// A request that may have been granted is lost to the audit; one that was refused is not.
func TestFailuresThatMayHaveTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		kind string
		lost bool
	}{
		"timeout":    {context.DeadlineExceeded, kindTimeout, true},
		"deadlock":   {&pgconn.PgError{Code: "40P01"}, "40P01" + nameOf("40P01"), false},
		"shut down":  {&pgconn.PgError{Code: "57P01"}, "57P01" + nameOf("57P01"), true},
		"overloaded": {pglimit.ErrOverloaded, kindOverloaded, false},
		"cut off":    {fmt.Errorf("%w: %w", pglimit.ErrUnavailable, pgconn.ErrConnClosed), kindConnection, true},
		"who knows":  {errors.New("what"), kindOther, true},
	} {
		if kind, _ := classify(c.err); kind != c.kind {
			t.Errorf("%s: of kind %q", name, kind)
		}
		r := newRecorder(newBudget(100, 1))
		r.failure(3, c.err, 0, 0)
		if _, lost := r.history.lost[3]; lost != c.lost {
			t.Errorf("%s: lost: %v", name, lost)
		}
	}
}

// A request that no connection was there for was not sent, whatever the reason: nothing
// was taken, and callers wait before they ask again.
func TestRequestWithoutAConnectionWasNotSent(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.NewWithConfig(t.Context(), (&greeter{most: 0}).config(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = pool.Acquire(t.Context())
	if kind, lost := classify(err); kind != kindConnection || lost || !unreachable(err) {
		t.Errorf("%v is of kind %q, lost: %v", err, kind, lost)
	}
}
