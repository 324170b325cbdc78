// Package wire counts the round trips that connections to Postgres really make, and can make each of them take longer,
// as if the server were further away.
//
//	wire.go     a connection that counts, and whose answers may come later
//	sleep_*.go  sleep as precisely as the system can
package wire

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Meter counts the round trips of many connections: each is one read, after one or more writes. Statements that are sent
// together cost one: BEGIN pipelined with a select is 1, BEGIN and then a select are 2. Setting a connection up (TLS, the
// log-in) and cancelling a statement make some too.
//
// The zero value is ready to use. It is safe for concurrent use.
type Meter struct{ trips atomic.Int64 }

// Trips returns how many there were so far.
func (m *Meter) Trips() int64 { return m.trips.Load() }

// Wrap makes every connection that is opened with the config from now on count its round trips on the meter, and get
// each answer later by the latency. (For a pool, pass &pool.ConnConfig.Config.) A copy of the config counts on the same
// meter.
//
// The latency is that of a round trip. It delays what is read first after a write, so statements that are sent together
// wait once. A new connection waits once more, for the handshake of TCP. A context that ends meanwhile is obeyed when
// the answer has come.
func Wrap(config *pgconn.Config, m *Meter, latency time.Duration) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(latency):
			return &conn{Conn: raw, meter: m, latency: latency}, nil
		case <-ctx.Done():
			_ = raw.Close() // the error that counts is the context's
			return nil, ctx.Err()
		}
	}
}

// conn counts the first read after a write that returns something. Whether something was written is looked up when a
// read returns, not when it begins: pgx may have a read waiting before it writes.
type conn struct {
	net.Conn
	meter   *Meter
	latency time.Duration

	asked atomic.Bool  // something was written, and nothing read since
	until atomic.Int64 // the deadline of reads, in milliseconds since 1970; 0: none
}

func (c *conn) Write(p []byte) (int, error) {
	c.asked.Store(true) // before the write: the answer may be read before it returns
	return c.Conn.Write(p)
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.CompareAndSwap(true, false) {
		// The whole latency lies between the server's answer and the caller. For the server it is the same as if half
		// of it lay before the question. Who gives up meanwhile is heard when it is over; pgx closes the connection then.
		for due := time.Now().Add(c.latency); c.latency > 0 && time.Now().Before(due); {
			Nanosleep(time.Until(due))
		}
		if until := c.until.Load(); until != 0 && c.latency > 0 && time.Now().UnixMilli() > until {
			return 0, os.ErrDeadlineExceeded
		}
		c.meter.trips.Add(1)
	}
	return n, err
}

func (c *conn) SetDeadline(t time.Time) error {
	c.readUntil(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.readUntil(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) readUntil(t time.Time) {
	if t.IsZero() {
		c.until.Store(0)
		return
	}
	c.until.Store(t.UnixMilli()) // of the year 1, too, which pgx takes
}
