package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sqlError is an error of Postgres's that is not pgx's, such as a *pq.Error, with the same as pgx
// would say it, which the strategies understand.
type sqlError struct {
	error
	pg *pgconn.PgError
}

func (e *sqlError) Unwrap() []error { return []error{e.pg, e.error} }

// Err returns an error of a driver's, or of database/sql's, in pgx's terms, with the original
// in the chain.
func Err(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	var theirs interface { // of *pq.Error, which this package does not import
		error
		SQLState() string
		Get(field byte) string
	}
	if !errors.As(err, &pg) && errors.As(err, &theirs) {
		pg = &pgconn.PgError{
			Code: theirs.SQLState(), Severity: theirs.Get('S'), SeverityUnlocalized: theirs.Get('S'),
			Message: theirs.Get('M'), Detail: theirs.Get('D'), Hint: theirs.Get('H'), ConstraintName: theirs.Get('n'), Routine: theirs.Get('R'),
		}
		err = &sqlError{err, pg}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (pg == nil || pg.Code == queryCanceled):
		return fmt.Errorf("%w: %v", ctx.Err(), err) //nolint:errorlint // it is the caller who cancelled, not Postgres
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", pgx.ErrTxClosed, err)
	}
	return err
}
