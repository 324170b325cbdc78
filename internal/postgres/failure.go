package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Three things can be to blame for the error of a call:
//
//   - The statement. The connection is fine, and so is the server.
//   - The connection: a connError. It is closed, and so are those that are as old; a fresh connection may do.
//   - The server, if a fresh connection, or the attempt to get one, meets the same. Sign says that.

// connError is an error for which the connection is to blame.
type connError struct {
	err      error
	taken    bool // what the call did may have changed something
	readOnly bool // the connection works, but cannot write
}

func (e *connError) Error() string { return e.err.Error() }
func (e *connError) Unwrap() error { return e.err }

// SQLSTATE codes of a session that ends: blame says why they matter.
const (
	adminShutdown      = "57P01"
	idleSessionTimeout = "57P05"
)

// blame returns err as a connError if the connection is to blame. broken says that it cannot be used any
// more; before, that statements before this one have succeeded on it.
//
// The answer to a statement may be lost with the connection, and then nobody knows what it did. It certainly
// did nothing if it was never sent, or was refused because it writes. And a session that an
// administrator ends, or that was idle for too long, says so only between transactions or after it has rolled
// back: not between a commit and its answer, unless the commit was a statement of its own.
func blame(ctx context.Context, err error, broken, before bool, address func() string) error {
	if err == nil || ctx.Err() != nil { // pgx ends the connection of a caller who leaves
		return err
	}
	pg := new(pgconn.PgError)
	switch errors.As(err, &pg); {
	case pg.Code == ReadOnlyTransaction:
		return &connError{fmt.Errorf("server %s: %w", address(), err), before, true}
	case isFatal(pg):
		return &connError{err, before || pg.Code != adminShutdown && pg.Code != idleSessionTimeout, false}
	case broken:
		return &connError{err, before || !pgconn.SafeToRetry(err), false}
	}
	return err
}

// isFatal says that the session ends with the error.
func isFatal(pg *pgconn.PgError) bool {
	return pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
}

// isFull says that the server, or the role, has as many connections as it may have.
func isFull(err error) bool { return Is(err, TooManyConnections) }

// canWrite is a statement that says why this connection cannot write. An empty answer: it can.
const canWrite = `select case when pg_catalog.pg_is_in_recovery() then 'it is a standby'
	when pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'on' then 'default_transaction_read_only is on' else '' end`

// cannotWrite is the error of a connection that cannot write.
func cannotWrite(address func() string, why string) error {
	if why == "" {
		return nil
	}
	return &connError{fmt.Errorf("%w: server %s: %s", rate.ErrReadOnly, address(), why), false, true}
}

// Setting says what to set right after an error of the driver's that comes back until somebody does, or nothing.
func Setting(err error) (cure string) {
	switch text := err.Error(); {
	case strings.Contains(text, "simple protocol queries must be run with"):
		return "with simple_protocol, add standard_conforming_strings=on and client_encoding=UTF8 to the connection string, or take default_query_exec_mode=exec"
	case errors.As(err, new(*net.OpError)): // of another of several hosts, perhaps
	case strings.Contains(text, "server refused TLS connection"), strings.Contains(text, "SSL is not enabled on the server"):
		return "the server takes no TLS: see sslmode"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "this process does not accept the server's certificate: see sslmode and sslrootcert"
	}
	return ""
}

// isAnswer says that a server that says this, when it is connected to or asked, answers. It is neither
// starting nor stopping, has room, and can write.
func isAnswer(err error) bool {
	var pg *pgconn.PgError
	if err == nil || !errors.As(err, &pg) {
		return err == nil || Setting(err) != ""
	}
	switch {
	case pg.Code == ReadOnlyTransaction, pg.Code == TooManyConnections, strings.HasPrefix(pg.Code, "57P"), strings.HasPrefix(pg.Code, "08"):
		return false
	}
	return true
}
