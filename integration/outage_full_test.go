//go:build unix

package integration

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit"
)

// All connections that the server allows are somebody else's. Requests fail as when it is
// down, and when there is room again they are served.
func serverFull(t *testing.T) {
	t.Parallel()
	const callers, connections = 8, 20
	server := newPatient(t, map[string]string{"max_connections": strconv.Itoa(connections)})
	var others []*pgx.Conn
	leave := func() {
		for _, conn := range others {
			_ = conn.Close(context.Background())
		}
		others = nil
	}
	t.Cleanup(leave)
	until(t, "all connections are somebody else's", func() bool { // those of before may take a while to end
		conn, err := pgx.Connect(t.Context(), server.URL(""))
		if sqlState(err) == "53300" { // too many connections
			return len(others) == connections
		}
		must(t, err)
		others = append(others, conn)
		return false
	})
	pool, dials := server.counted(t, 4)
	c := newCrowd(t, pool, pglimit.Config{Name: "full", Timeout: time.Minute}, callers, 200)
	began := time.Now()
	c.opens(t)
	c.answered(t, 10)
	attempts, room := dials.Load(), time.Now()
	leave()
	mark(c)
	c.served(t, 5)
	c.home(t)

	meanwhile := c.during(began, room)
	t.Logf("%d requests while it was full, %d connections tried, failures %v; log %v", len(meanwhile), attempts, failures(meanwhile), c.log.heard())
	c.wantCounted(t)
	by := failures(meanwhile)
	if by[pglimit.CauseUnavailable] == 0 || by[pglimit.CauseBreaker] == 0 || by.Total() != int64(len(meanwhile)) {
		t.Errorf("%d requests, failures %v", len(meanwhile), by)
	}
	for _, a := range meanwhile {
		if !errors.Is(a.err, pglimit.ErrUnavailable) || pglimit.CauseOf(a.err) == pglimit.CauseUnavailable && !strings.Contains(a.err.Error(), "53300") && !strings.Contains(a.err.Error(), "given up") {
			t.Fatalf("%v", a.err)
		}
	}
	if limit := int64(room.Sub(c.came)/(200*time.Millisecond)) + 10; attempts > limit {
		t.Errorf("%d connections were tried, want %d at most", attempts, limit)
	}
	want(t, "full", c, "unavailable", "breaker")
}

// The server is restarted under load, by a fast shutdown. A few calls fail with it, requests
// fail at once until it is back, and then are served.
func serverRestarted(t *testing.T) {
	t.Parallel()
	const callers = 8
	server := newPatient(t, nil)
	pool, dials := server.counted(t, 4)
	c := newCrowd(t, pool, pglimit.Config{Name: "restarted", Timeout: time.Minute}, callers, 200)
	warmUp(t, pool, 4)
	c.served(t, 5)

	before, began := dials.Load(), time.Now()
	server.stop(t)
	server.start(t)
	back := time.Now()
	mark(c)
	c.served(t, 5)
	c.home(t)

	away := failures(c.during(began, back))
	t.Logf("it was away for %v, in which failed %v; %d connections tried; log %v", back.Sub(began), away, dials.Load()-before, c.log.heard())
	c.wantCounted(t)
	// Each caller once or, before the breaker opens, twice; and one sign of life every 200 ms.
	if most := 2*callers + int64(back.Sub(began)/(200*time.Millisecond)) + 10; away.Total()-away[pglimit.CauseBreaker] > most {
		t.Errorf("failures %v, want %d at most but for those of the breaker", away, most)
	}
}
