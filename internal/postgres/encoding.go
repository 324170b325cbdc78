package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Go sends text as UTF-8. A connection with another client_encoding reads it as other text: one key
// would be two buckets, one for each encoding. ASCII is the same in all of them, so only other text is
// looked at more closely.

// isASCII says whether all text among the arguments is ASCII.
func isASCII(args []any) bool {
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			if !asciiText(arg) {
				return false
			}
		case []string:
			if slices.ContainsFunc(arg, func(text string) bool { return !asciiText(text) }) {
				return false
			}
		}
	}
	return true
}

func asciiText(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// checkEncoding returns an error unless UTF-8 is read as what it is.
func checkEncoding(client, server string) error {
	switch {
	case client == "UTF8", server == "SQL_ASCII": // there nothing is converted
		return nil
	case client == "SQL_ASCII" && server == "UTF8": // nor here
		return nil
	}
	return fmt.Errorf("%w: with client_encoding %s this connection reads a key that is not ASCII as another one: connect with client_encoding=UTF8", rate.ErrNothingTaken, client)
}

func checkConn(conn *pgx.Conn) error {
	if conn == nil {
		return nil
	}
	client := conn.PgConn().ParameterStatus("client_encoding")
	if client == "" { // a pooler does not say
		return nil
	}
	return checkEncoding(client, conn.PgConn().ParameterStatus("server_encoding"))
}

// check returns an error if the connection would read text among the arguments as other text.
func (s *pgxSession) check(args []any) error {
	if isASCII(args) {
		return nil
	}
	conn := s.conn
	if tx, is := s.pgxSender.(interface{ Conn() *pgx.Conn }); is { // a pgx.Tx
		conn = tx.Conn()
	}
	return checkConn(conn)
}

// check is that of a pgxSession. On a *sql.Conn the driver is asked: lib/pq allows nothing but UTF8. In a *sql.Tx,
// Postgres is asked once.
func (s *sqlSession) check(ctx context.Context, args []any) error {
	if s.readsUTF8 || isASCII(args) {
		return nil
	}
	if conn, is := s.sender.(*sql.Conn); is {
		return checkConn(pgxOf(conn))
	}
	var client, server string
	if err := s.Row(ctx, "select pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('server_encoding')", nil, &client, &server); err != nil {
		return err
	}
	err := checkEncoding(client, server)
	s.readsUTF8 = err == nil
	return err
}
