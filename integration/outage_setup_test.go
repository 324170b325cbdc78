package integration

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A database that is not migrated, and a role without rights, are no outage that ends by
// itself: also a limiter that fails open says so, to every caller, and in the log as an error.
// The breaker, which would hide it behind a word of its own, stays closed.
func TestAWrongSetupIsNoOutage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		pool func() *pgxpool.Pool
		want error
	}{
		{"not migrated", func() *pgxpool.Pool { return newPool(t, newDatabase(t), 4) }, pglimit.ErrNotMigrated},
		{"permission", func() *pgxpool.Pool {
			url := databaseURL(newMigrated(t))
			return migrationPool(t, url, as(newRole(t, url)))
		}, pglimit.ErrPermission},
	} {
		for _, alone := range []bool{false, true} {
			var log bytes.Buffer
			limiter, err := pglimit.New(test.pool(), strategies.TokenBucket{}, pglimit.Config{
				Name: "test", Limit: pglimit.PerSecond(10), Timeout: time.Minute,
				OnError: pglimit.FailOpen, Combine: pglimit.Combine{Off: alone}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			must(t, err)
			const requests = 20
			began := time.Now()
			for range requests {
				if d, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, test.want) || d.Allowed {
					t.Fatalf("%s: %+v, %v", test.name, d, err)
				}
			}
			must(t, limiter.Close(t.Context()))
			stats := limiter.Stats()
			if stats.Open != 0 || stats.Failed[pglimit.CauseOf(test.want)] != requests || stats.Failed.Total() != requests {
				t.Errorf("%s: %+v", test.name, stats)
			}
			if lines := strings.Split(strings.TrimSpace(log.String()), "\n"); len(lines) > 1+int(time.Since(began)/(10*time.Second)) || !strings.Contains(lines[0], `level=ERROR msg="pglimit: no decision is known"`) || !strings.Contains(lines[0], test.name) {
				t.Errorf("%s: log %s", test.name, log.String())
			}
		}
	}
}
