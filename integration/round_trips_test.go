package integration

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// One decision costs one round trip; for_update_nowait's costs two. Counted are the
// messages after which a client waits for the server: Sync and simple Query.
func TestRoundTripsPerDecision(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		want := int64(1)
		if strategy.Name() == "for_update_nowait" {
			want = 2
		}
		var trips atomic.Int64
		config := pool.Config().ConnConfig
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &tripCounter{Conn: conn, trips: &trips}, err
		}
		conn, err := pgx.ConnectConfig(t.Context(), config)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		take(t, conn, strategy, "warm", hours) // prepares the statements
		take(t, conn, strategy, "warm", hours)

		for _, decision := range []struct {
			name    string
			allowed bool
		}{{"first grant", true}, {"denial", false}} {
			before := trips.Load()
			if d := take(t, conn, strategy, "k", hours); d.Allowed != decision.allowed {
				t.Fatalf("%s: allowed %v", decision.name, d.Allowed)
			}
			if n := trips.Load() - before; n != want {
				t.Errorf("%s: %d round trips, want %d", decision.name, n, want)
			}
		}
		for name, way := range tripWays(t, pool, conn, strategy) {
			var spent int64
			for range 3 { // the first prepares; with a limit of one, it is granted and the others are not
				spent = way(&trips)
			}
			if spent != 1 {
				t.Errorf("%s: %d round trips, want 1", name, spent)
			}
		}
	})
}

// tripWays are the other ways to ask that the strategy knows. Each returns how many trips it took.
func tripWays(t *testing.T, pool *pgxpool.Pool, conn *pgx.Conn, strategy strategies.Strategy) map[string]func(trips *atomic.Int64) int64 {
	t.Helper()
	limiter := newLimiter(t, newPool(t, conn.Config().ConnString(), 1), strategy, pglimit.Config{Name: "test", Limit: hours}).On(pglimit.OnConn(conn))
	of := func(ask func() error) func(*atomic.Int64) int64 {
		return func(trips *atomic.Int64) int64 {
			before := trips.Load()
			must(t, ask())
			return trips.Load() - before
		}
	}
	ways := make(map[string]func(*atomic.Int64) int64)
	if strategy.Check(&rate.Request{Limit: pglimit.Every(time.Second), Ahead: 1}) == nil {
		plenty := hours.WithBurst(100)
		asked := 0
		granted := func(key string) pglimit.Decision {
			asked++
			d, err := limiter.Do(t.Context(), pglimit.Request{Key: fmt.Sprint(key, asked), Limit: plenty, Tokens: 5})
			must(t, err)
			return d
		}
		ways["a reservation"] = of(func() error { _, err := limiter.Reserve(t.Context(), "reserved"); return err })
		for name, use := range map[string]func(pglimit.Decision) error{
			"a refund":         func(d pglimit.Decision) error { return limiter.Refund(t.Context(), d, 1) },
			"settled for less": func(d pglimit.Decision) error { _, err := limiter.Settle(t.Context(), d, 4); return err },
			"settled for more": func(d pglimit.Decision) error { _, err := limiter.Settle(t.Context(), d, 6); return err },
		} {
			ways[name] = func(trips *atomic.Int64) int64 {
				d := granted(name)
				return of(func() error { return use(d) })(trips)
			}
		}
	}
	if strategy.Name() == "token_bucket" {
		timelessly(t, pool)
		ways["an ID"] = of(func() error { takeOnce(t, conn, "id", "once", hours, time.Hour); return nil })
		ways["a block"] = of(func() error { takeOrBlock(t, conn, "blocked", hours, 1, hourly); return nil })
		ways["three keys"] = of(func() error {
			_, err := strategy.Take(t.Context(), on(conn), asks(hours, "c", "a", "b"))
			return err
		})
		ways["a group"] = of(func() error {
			_, err := strategy.Take(t.Context(), on(conn), grouped(asks(hours.WithBurst(5), "d", "e", "f")))
			return err
		})
	}
	return ways
}

// tripCounter reads the frontend's messages: a type, a length that counts itself,
// and a body. Only the very first has no type.
type tripCounter struct {
	net.Conn
	trips   *atomic.Int64
	started bool
	header  []byte // of a message that is not complete yet
	skip    int    // bytes of the current body still to come
}

func (c *tripCounter) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		if c.skip > 0 {
			n := min(c.skip, len(rest))
			c.skip, rest = c.skip-n, rest[n:]
			continue
		}
		c.header, rest = append(c.header, rest[0]), rest[1:]
		size := 5
		if !c.started {
			size = 4
		}
		if len(c.header) < size {
			continue
		}
		if kind := c.header[0]; c.started && (kind == 'S' || kind == 'Q') {
			c.trips.Add(1)
		}
		length := c.header[size-4:]
		c.skip = int(length[0])<<24 | int(length[1])<<16 | int(length[2])<<8 | int(length[3]) - 4
		c.started, c.header = true, c.header[:0]
	}
	return c.Conn.Write(data)
}
