package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// What is an outage, what was merely refused, and what somebody has to set right can be
// told from one another, and the error says what to do.
func TestErrorsSayWhoseFaultItIs(t *testing.T) {
	t.Parallel()
	kinds := []error{rate.ErrUnavailable, rate.ErrNothingTaken, rate.ErrLocked, rate.ErrNotMigrated, rate.ErrPermission, rate.ErrSetting, rate.ErrPooler}
	for _, test := range []struct {
		err  error
		want []error
		says string
	}{
		{io.ErrUnexpectedEOF, []error{rate.ErrUnavailable}, "no answer"},
		{context.DeadlineExceeded, nil, "no answer"},
		{pgx.ErrTxClosed, nil, "tx is closed"},
		{context.Canceled, nil, "no answer"},
		{&rate.RequestError{Field: "ID", Why: "is used"}, nil, "is used"},
		{rate.ErrNotMigrated, []error{rate.ErrNotMigrated}, ""},
		{&pgconn.PgError{Code: "53300"}, []error{rate.ErrUnavailable}, ""},
		{&pgconn.PgError{Code: "28P01"}, []error{rate.ErrPermission}, "refuses this login"},
		{&pgconn.PgError{Code: "28000"}, []error{rate.ErrPermission}, "refuses this login"},
		{&pgconn.PgError{Code: "22023", SeverityUnlocalized: "FATAL"}, []error{rate.ErrSetting}, "refuses a setting of the connection"},
		{errors.New("simple protocol queries must be run with client_encoding=UTF8"), []error{rate.ErrSetting}, "add standard_conforming_strings=on"},
		{fmt.Errorf("tls error: %w", errors.New("server refused TLS connection")), []error{rate.ErrSetting}, "see sslmode"},
		{fmt.Errorf("pq: %w", errors.New("SSL is not enabled on the server")), []error{rate.ErrSetting}, "see sslmode"},
		{fmt.Errorf("tls: %w", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}), []error{rate.ErrSetting}, "see sslmode"},
		{errors.Join(&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, &net.OpError{Op: "dial", Err: io.EOF}), []error{rate.ErrUnavailable}, "no answer"},
		{&pgconn.PgError{Code: "3D000"}, []error{rate.ErrNotMigrated}, "no such database"},
		{&pgconn.PgError{Code: "08006"}, []error{rate.ErrUnavailable}, ""},
		{&pgconn.PgError{Code: "57P01"}, []error{rate.ErrUnavailable}, ""},
		{&pgconn.PgError{Code: "57014"}, []error{rate.ErrNothingTaken}, ""},
		{&pgconn.PgError{Code: "40P01"}, []error{rate.ErrNothingTaken}, ""},
		{&pgconn.PgError{Code: "22021"}, []error{rate.ErrNothingTaken}, ""},
		{&pgconn.PgError{Code: "55P03"}, []error{rate.ErrNothingTaken, rate.ErrLocked}, ""},
		{&pgconn.PgError{Code: "42P01"}, []error{rate.ErrNotMigrated}, "pglimit migrate up"},
		{&pgconn.PgError{Code: "42501"}, []error{rate.ErrPermission}, "pglimit migrate grants"},
		{&pgconn.PgError{Code: "25006"}, []error{rate.ErrUnavailable}, "connect to the primary"},
		{&pgconn.PgError{Code: "26000"}, []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		{&pgconn.PgError{Code: "42P05"}, []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		{&pgconn.PgError{Code: "22P03"}, []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		// bind message supplies 5 parameters, but prepared statement "" requires 9
		{&pgconn.PgError{Code: "08P01", Severity: "FEHLER", SeverityUnlocalized: "ERROR"}, []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		{pgx.ErrNoRows, []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		{errors.New("number of field descriptions must equal number of destinations, got 3 and 4"), []error{rate.ErrPooler}, "default_query_exec_mode=exec"},
		// PgBouncer's own: pgbouncer cannot connect to server, query_wait_timeout
		{&pgconn.PgError{Code: "08P01", Severity: "FATAL"}, []error{rate.ErrUnavailable}, ""},
		{&pgconn.PgError{Code: "42601"}, nil, "Postgres refused"},
	} {
		err := Explain(test.err)
		for _, kind := range kinds {
			wanted := false
			for _, want := range test.want {
				wanted = wanted || errors.Is(kind, want)
			}
			if errors.Is(err, kind) != wanted {
				t.Errorf("%v: is it %q? want %v", err, kind, wanted)
			}
		}
		if !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: want it to say %q", err, test.says)
		}
		answered := errors.As(test.err, new(*pgconn.PgError))
		if answered && strings.Contains(err.Error(), "no answer") {
			t.Errorf("%v: that is an answer", err)
		}
	}
}
