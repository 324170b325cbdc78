package wire

import (
	"net"
	"os"
	"sync/atomic"
	"time"
)

// settingUp is conn.setUp until the connection is set up.
const settingUp = -1

// conn counts the round trips of a connection: the first read after a write that returns
// something.
//
// Whether something was written is looked up when a read returns, not when it begins: pgx may
// have a read waiting before it writes.
type conn struct {
	net.Conn
	meter   *Meter
	latency time.Duration

	_     [64]byte     // keeps what is written with each trip out of the cache lines of others
	asked atomic.Bool  // something was written, and nothing read since
	trips atomic.Int64 // all of them
	setUp atomic.Int64 // how many of the trips were before ready, or settingUp
	until atomic.Int64 // the deadline of reads, in milliseconds since 1970; 0: none
	_     [64]byte
}

func (c *conn) Write(p []byte) (int, error) {
	c.ask()
	return c.Conn.Write(p)
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.answered() {
		// The whole latency lies between the server's answer and the caller. For the server it is the same as if half
		// of it lay before the question. Who gives up meanwhile is heard when it is over; pgx closes the connection then.
		for due := time.Now().Add(c.latency); c.latency > 0 && time.Now().Before(due); {
			Nanosleep(time.Until(due))
		}
		if until := c.until.Load(); until != 0 && c.latency > 0 && time.Now().UnixMilli() > until {
			return 0, os.ErrDeadlineExceeded
		}
		c.trips.Add(1)
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

// ask comes before the write: the answer may be read before the write returns.
func (c *conn) ask() {
	if !c.asked.Load() { // a load is cheaper than a store, which locks the cache line
		c.asked.Store(true)
	}
}

// answered says whether what was just read is the first after a write.
func (c *conn) answered() bool {
	return c.asked.Load() && c.asked.CompareAndSwap(true, false)
}

// ready says that the connection is set up: its next trips are those of statements.
func (c *conn) ready() { c.setUp.CompareAndSwap(settingUp, c.trips.Load()) }

// Close may be called again.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.meter.remove(c)
	return err
}

// NetConn is the connection as it was dialled.
func (c *conn) NetConn() net.Conn { return c.Conn }
