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
// down, and soon after there is room again they are served.
func serverFull(t *testing.T) {
	t.Parallel()
	const full, callers, connections = 2 * time.Second, 8, 20
	server := newPatient(t, map[string]string{"max_connections": strconv.Itoa(connections)})
	timeout := server.timeout(t, 300*time.Millisecond)
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
	c := newCrowd(t, pool, pglimit.Config{Name: "full", Timeout: timeout}, callers, 200)
	began := time.Now()
	<-soon(t, full).Done()
	witness := server.witness(t)
	until(t, "it is open", func() bool { return c.limiter.Stats().Open == 1 })
	attempts, room := dials.Load(), time.Now()
	leave()
	c.served(t, 100)
	<-soon(t, time.Second).Done() // for who may fail after that
	c.home(t)

	meanwhile := c.during(began, room.Add(-timeout)) // who asked last may have got the room
	first, all := c.recovery(room)
	t.Logf("%d requests while it was full, %d connections tried, failures %v; after there is room the first is served within %v, the last fails at %v; log %v",
		len(meanwhile), attempts, failures(meanwhile), first, all, c.log.heard())
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
	if served := witness.soon(room); first > served || all > served {
		t.Errorf("the first is served after %v, and after %v one still fails", first, all)
	}
	want(t, "full", c, witness.busy(room), "unavailable", "breaker")
}

// The server is restarted under load, by a fast shutdown. A few calls fail with it, requests
// fail at once until it is back, and then are served.
func serverRestarted(t *testing.T) {
	t.Parallel()
	const callers = 8
	server := newPatient(t, nil)
	timeout := server.timeout(t, 300*time.Millisecond)
	pool, dials := server.counted(t, 4)
	c := newCrowd(t, pool, pglimit.Config{Name: "restarted", Timeout: timeout}, callers, 200)
	warmUp(t, pool, 4)
	c.served(t, 100)

	before, began := dials.Load(), time.Now()
	witness := server.witness(t)
	server.stop(t)
	server.start(t)
	back := time.Now()
	c.served(t, 100)
	<-soon(t, time.Second).Done() // for who may fail after that
	c.home(t)

	all := c.during(began, time.Now())
	by := failures(all)
	first, last := c.recovery(back)
	t.Logf("it was away for %v; of %d requests failed %v; %d connections tried; after its return the first is served within %v, the last fails at %v; log %v",
		back.Sub(began), len(all), by, dials.Load()-before, first, last, c.log.heard())
	c.wantCounted(t)
	// Each caller once or, before the breaker opens, twice; and one sign of life every 200 ms.
	away := failures(c.during(began, back))
	if most := 2*callers + int64(back.Sub(began)/(200*time.Millisecond)) + 10; away.Total()-away[pglimit.CauseBreaker] > most {
		t.Errorf("failures %v, want %d at most but for those of the breaker", away, most)
	}
	// A caller asks once in crowdPace.
	if most := callers * (int64((back.Sub(began)+last)/crowdPace) + 2); by.Total() > most {
		t.Errorf("failures %v, want %d at most", by, most)
	}
	if served := witness.soon(back); first > served || last > served {
		t.Errorf("the first is served after %v, and after %v one still fails", first, last)
	}
	if stats := c.limiter.Stats(); stats.Open != 0 {
		t.Errorf("%+v: it is open at the end", stats)
	}
}
