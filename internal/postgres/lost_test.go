package postgres_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// loser is a server that takes, and whose connection breaks before the answer.
type loser struct{ takes atomic.Int64 }

func (l *loser) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go l.serve(server)
	return client, nil
}

func (l *loser) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // so it breaks
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for backend.Flush() == nil {
		message, err := backend.Receive()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.Parse:
			backend.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Describe:
			if m.ObjectType == 'S' {
				backend.Send(&pgproto3.ParameterDescription{ParameterOIDs: []uint32{20}})
			}
			backend.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("take"), DataTypeOID: 20, DataTypeSize: 8}}})
		case *pgproto3.Sync:
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		case *pgproto3.Bind:
			backend.Send(&pgproto3.BindComplete{})
		case *pgproto3.Query:
			if strings.Contains(m.String, "take") {
				l.takes.Add(1)
				return
			}
			backend.Send(&pgproto3.EmptyQueryResponse{})
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		case *pgproto3.Execute:
			l.takes.Add(1)
			return
		}
	}
}

// A take whose answer is lost with the connection may have been committed: in whatever way it was sent, it is not sent
// again, and the connection is known to be broken.
func TestALostAnswerIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		l := new(loser)
		config, err := pgxpool.ParseConfig("host=192.0.2.1 user=u sslmode=disable")
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.DefaultQueryExecMode, config.ConnConfig.DialFunc = mode, l.dial
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		db := stdlib.OpenDB(*config.ConnConfig)
		t.Cleanup(func() { _ = db.Close() })
		for by, on := range map[string]rate.Session{"pgx": postgres.OnPool(pool), "database/sql": postgres.OnSQLDB(db)} {
			for call, send := range map[string]func() error{
				"a row": func() error { return on.Row(t.Context(), "select take($1)", []any{int64(1)}, new(int64)) },
				"a pipeline": func() error {
					_, err := on.Pipeline(t.Context(), rate.Statement{SQL: "select take($1)", Args: []any{int64(1)}})
					return err
				},
			} {
				l.takes.Store(0)
				if err := send(); err == nil || l.takes.Load() != 1 || !postgres.IsBroken(err) {
					t.Errorf("%v, %s, %s: sent %d times: %v", mode, by, call, l.takes.Load(), err)
				}
			}
		}
	}
}
