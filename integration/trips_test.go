package integration

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
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
		if err != nil {
			t.Fatal(err)
		}
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
		if strategy.Name() != "token_bucket" {
			return
		}
		for range 3 { // the first prepares; one is granted, the others are not
			before := trips.Load()
			takeOnce(t, conn, "id", "once", hours, time.Hour)
			takeOrBlock(t, conn, "blocked", hours, 1, hourly)
			want = trips.Load() - before
		}
		if want != 2 {
			t.Errorf("a request with an ID and one that may block: %d round trips, want 2", want)
		}
		var many []pglimit.Request
		for _, key := range []string{"c", "a", "b"} {
			many = append(many, pglimit.Request{Limiter: "test", Key: key, Limit: hours, Tokens: 1, Unit: 1})
		}
		for range 2 { // the first prepares
			before := trips.Load()
			if _, err := strategy.Take(t.Context(), on(conn), many); err != nil {
				t.Fatal(err)
			}
			want = trips.Load() - before
		}
		if want != 1 {
			t.Errorf("three keys: %d round trips, want 1", want)
		}
		for range 2 {
			before := trips.Load()
			if _, err := (strategies.TokenBucket{}).TakeGroups(t.Context(), on(conn), [][]pglimit.Request{asks(hours.WithBurst(5), "d", "e", "f")}); err != nil {
				t.Fatal(err)
			}
			want = trips.Load() - before
		}
		if want != 1 {
			t.Errorf("a group: %d round trips, want 1", want)
		}
	})
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
