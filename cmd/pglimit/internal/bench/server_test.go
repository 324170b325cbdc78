package bench

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// greeter is a server that lets clients in and answers nothing: fakes send it nothing.
type greeter struct {
	most   int64 // connections at once; others are refused
	dialed atomic.Int64
	open   atomic.Int64
}

// config of a pool that is on the server.
func (g *greeter) config(t *testing.T) *pgxpool.Config {
	t.Helper()
	config, err := pgxpool.ParseConfig("host=greeter user=bench sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		g.dialed.Add(1)
		if g.open.Add(1) > g.most {
			g.open.Add(-1)
			return nil, errors.New("no room")
		}
		client, server := net.Pipe()
		go func() {
			defer g.open.Add(-1)
			defer server.Close() //nolint:errcheck // the test is over
			greet(server)
		}()
		return client, nil
	}
	return config
}

// greet answers the startup, and then reads until the client goes.
func greet(conn net.Conn) {
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if backend.Flush() != nil {
		return
	}
	for {
		message, err := backend.Receive()
		if err != nil {
			return
		}
		if _, bye := message.(*pgproto3.Terminate); bye {
			return
		}
	}
}
