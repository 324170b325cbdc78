package live

import (
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed database.sql
var databaseSQL string

// database is a row of database.sql. Its fields are in the order of the columns.
type database struct {
	WAL, Deadlocks                  int64
	Connections, Busy, Waiting      int64
	Live, Dead, Updates, HOTUpdates int64
}

// readDatabase returns nil if Postgres does not answer in time: the panels then have a gap.
func readDatabase(ctx context.Context, pool *pgxpool.Pool) *database {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := pool.Query(ctx, databaseSQL)
	if err != nil {
		return nil
	}
	d, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByPos[database])
	if err != nil {
		return nil
	}
	return d
}
