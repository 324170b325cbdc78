package wire

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Wrap makes every connection that is opened with the config from now on count its round trips
// on the meter, and get each answer later by the latency.
//
// It hooks config.DialFunc and config.AfterConnect, and calls the ones that were there. (For a
// pool, pass &pool.ConnConfig.Config.) Fallbacks, TLS and Unix sockets work as before. Call it
// once for a config; a copy of the config counts on the same meter. AfterNetConnect may replace a
// connection only by one with a method NetConn, as [crypto/tls.Conn] has: otherwise connecting
// fails.
//
// The latency is that of a round trip. It delays what is read first after a write, so statements
// that are sent together wait once. A new connection waits once more, for the handshake of TCP.
// A context that ends meanwhile is obeyed when the answer has come.
func Wrap(config *pgconn.Config, m *Meter, latency time.Duration) {
	dial, after := config.DialFunc, config.AfterConnect
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := sleep(ctx, latency); err != nil {
			_ = raw.Close() // the error that counts is the context's
			return nil, err
		}
		return m.add(raw, latency), nil
	}
	config.AfterConnect = func(ctx context.Context, pg *pgconn.PgConn) error {
		if after != nil {
			if err := after(ctx, pg); err != nil {
				return err
			}
		}
		return ready(pg.Conn())
	}
}

// ready marks the counting connection below c as set up.
func ready(c net.Conn) error {
	for below := c; ; {
		if counting, ok := below.(interface{ ready() }); ok {
			counting.ready()
			return nil
		}
		wrapper, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			return fmt.Errorf("wire: a %T hides the connection whose round trips are counted: it needs a method NetConn", c)
		}
		below = wrapper.NetConn()
	}
}

// sleep returns after that long, or with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
