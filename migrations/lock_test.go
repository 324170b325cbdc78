package migrations

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// slow answers every statement late.
type slow struct {
	rate.Session
	by time.Duration
}

func (s slow) Exec(ctx context.Context, _ string, _ ...any) (int64, error) {
	select {
	case <-time.After(s.by):
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s slow) Row(ctx context.Context, sql string, args []any, into ...any) error {
	holders := "process 7 holds locks"
	*into[0].(**string) = &holders
	_, err := s.Exec(ctx, sql, args...)
	return err
}

// A server that is slow to answer is asked who holds the lock all the same, for as long as ctx lets it and a little
// more, and the migration is tried again.
func TestASlowServerSaysWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answers, gives time.Duration // the attempt fails after a second
		says           string
		tries          int
	}{
		"in time":                   {10 * time.Second, time.Hour, "", 2},
		"who asks gives up":         {2 * time.Second, 3500 * time.Millisecond, "process 7 holds locks (gave up in try 1: context deadline exceeded)", 1},
		"who asks is not held long": {time.Hour, time.Hour + 1500*time.Millisecond, "migrations: it fails: ", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.gives)
				defer cancel()
				began, tries := time.Now(), 0
				err := untilUnlocked(ctx, slow{by: test.answers}, options{log: slog.New(slog.DiscardHandler), lockTimeout: time.Second}, func() error {
					if tries++; tries == 2 {
						return nil
					}
					time.Sleep(time.Second) //nolint:forbidigo // by the clock of the bubble, which is exact
					return fail("it fails", &pgconn.PgError{Code: postgres.LockNotAvailable})
				})
				if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) || tries != test.tries {
					t.Errorf("in try %d: %v", tries, err)
				}
				if took := time.Since(began); took > test.gives+5*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}
