package wire

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func TestRoundTripsAreCounted(t *testing.T) {
	t.Parallel()
	pool, meter := open(t, serverURL(t), 1, 0)
	ctx := t.Context()
	must(t, pool.Ping(ctx))

	exec := func(sql string, args ...any) func() {
		return func() {
			_, err := pool.Exec(ctx, sql, args...)
			must(t, err)
		}
	}
	batch := func() {
		var b pgx.Batch
		b.Queue("select 1")
		b.Queue("select $1::int", 2)
		b.Queue("select $1::int", 3)
		must(t, pool.SendBatch(ctx, &b).Close())
	}
	transaction := func() {
		must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select $1::int", 2)
			return err
		}))
	}
	for _, test := range []struct {
		what string
		work func()
		want int64
	}{
		{"nothing", func() {}, 0},
		{"a query", exec("select 1", pgx.QueryExecModeSimpleProtocol), 1},
		{"the first use of a statement", exec("select $1::int", 1), 2},
		{"its second use", exec("select $1::int", 1), 1},
		{"the first use of a statement in a batch", batch, 2},
		{"a batch", batch, 1},
		{"begin, select and commit", transaction, 3},
		{"an answer of many packets", exec("select repeat('x', 1000) from generate_series(1, 20000)", pgx.QueryExecModeSimpleProtocol), 1},
		{"a question of many packets", exec("select $1::text", strings.Repeat("x", 20<<20)), 2},
		{"a wait for a notification", func() {
			must(t, pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
				short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
				defer cancel()
				if _, err := conn.Conn().WaitForNotification(short); err == nil {
					t.Error("somebody notified us")
				}
				return nil
			}))
		}, 0},
	} {
		if got := trips(meter, test.work); got != test.want {
			t.Errorf("%s: %d round trips, want %d", test.what, got, test.want)
		}
	}
}

// What each strategy costs once its statements are prepared.
func TestRoundTripsOfTheStrategies(t *testing.T) {
	t.Parallel()
	pool, meter := open(t, serverURL(t), 1, 0)
	limiter := "wire " + rand.Text() // one that no earlier test has emptied
	limit := rate.Limit{Tokens: 1, Period: time.Hour, Burst: 1}
	take := func(s strategies.Strategy, key string) (allowed bool) {
		decisions, err := s.Take(t.Context(), postgres.OnPool(pool), []rate.Request{
			{Limiter: limiter, Key: key, Limit: limit, Tokens: 1, Unit: 1},
		})
		must(t, err)
		return decisions[0].Allowed
	}
	for _, s := range strategies.All() {
		want := int64(1)
		if s.Name() == "for_update_nowait" {
			want = 2
		}
		take(s, "warm")
		take(s, "warm")
		for _, allowed := range []bool{true, false} {
			got := trips(meter, func() {
				if take(s, "k") != allowed {
					t.Fatalf("%s: allowed is not %v", s.Name(), allowed)
				}
			})
			if got != want {
				t.Errorf("%s, allowed %v: %d round trips, want %d", s.Name(), allowed, got, want)
			}
		}
	}
}
