package wire

import (
	"net"
	"sync"
	"time"
)

// Meter adds up the round trips of many connections. Each connection counts for itself, so that
// no two of them write to the same cache line; reading the meter costs some 15 ns for each open
// connection.
//
// The zero value is ready to use. It is safe for concurrent use.
type Meter struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	closed Count // of the connections that are closed
}

// Count is what a [Meter] has counted since it was made. It never goes down.
type Count struct {
	// Trips are the round trips of connections that were set up: each is one read, after one or
	// more writes. Statements that are sent together cost one: BEGIN pipelined with a select is 1,
	// BEGIN and then a select are 2.
	Trips int64

	// SetUp are the round trips that it took to set connections up (TLS, the log-in), and those
	// of requests to cancel a statement.
	SetUp int64

	// Connections is how many were opened. A request to cancel opens one too.
	Connections int64
}

// Since returns what was counted after the earlier reading of the same meter.
func (c Count) Since(earlier Count) Count {
	return Count{c.Trips - earlier.Trips, c.SetUp - earlier.SetUp, c.Connections - earlier.Connections}
}

// Count returns the sums so far.
func (m *Meter) Count() Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.closed
	for c := range m.open {
		sum.add(c)
	}
	return sum
}

func (c *Count) add(one *conn) {
	// In this order: so neither sum goes down if the connection becomes ready between the loads.
	all, setUp := one.trips.Load(), one.setUp.Load()
	if setUp == settingUp || setUp > all {
		setUp = all
	}
	c.SetUp += setUp
	c.Trips += all - setUp
	c.Connections++
}

func (m *Meter) add(raw net.Conn, latency time.Duration) *conn {
	c := &conn{Conn: raw, meter: m, latency: latency}
	c.setUp.Store(settingUp)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open == nil {
		m.open = make(map[*conn]struct{})
	}
	m.open[c] = struct{}{}
	return c
}

// remove keeps what the connection has counted. It may be called again.
func (m *Meter) remove(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, open := m.open[c]; open {
		delete(m.open, c)
		m.closed.add(c)
	}
}
