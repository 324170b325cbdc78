package migrations

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// versionTable is where goose records the applied migrations.
const versionTable = "pglimit.goose_db_version"

//go:embed version_table.sql
var createVersionTable string

// ownSettings holds for the transaction alone; the lock_timeout, for the wait for another migration. Names in view and
// function bodies bind in pg_catalog, whatever the caller's search_path. now(), which goose writes into a timestamp
// without time zone, is UTC, and what goose reads of it is ISO. A server too old for a setting does not need it. Citus
// changes a table's shards one after another: else it refuses to change another table in the same transaction.
const ownSettings = `
	select pg_catalog.set_config(s.name, s.value, true)
	from (values
		('search_path', ''), ('TimeZone', 'UTC'), ('DateStyle', 'ISO'), ('IntervalStyle', 'postgres'),
		('statement_timeout', '0'), ('lock_timeout', '1s'), ('transaction_timeout', '0'),
		('idle_in_transaction_session_timeout', '0'), ('citus.multi_shard_modify_mode', 'sequential')
	) s (name, value)
	where s.name in (select p.name from pg_catalog.pg_settings p)`

// session is one transaction on one connection, which has its turn: see takeTurn.
//
// goose could lock by itself, with a session lock. Any login may take that, too, and keep it. But its Provider.Up looks
// for pending migrations without the lock, and makes its version table then, in a schema that is not there yet. It
// takes and releases the lock for each call. And a session lock taken through PgBouncer in transaction mode stays on a
// connection that nobody finds again. So goose gets the transaction as its database.
type session struct {
	tx    rate.Session
	goose *goose.Provider
	log   *slog.Logger
	done  []func() // each logs something that was done, after the commit
}

// inTransaction runs do in a transaction, one at a time. What do has not committed is
// rolled back. do may run more than once: see [untilUnlocked].
func inTransaction(ctx context.Context, db rate.Session, o options, do func(*session) error) error {
	if db == nil {
		return errNoPool
	}
	if o.lockTimeout < 0 {
		return fmt.Errorf("migrations: WithLockTimeout(%v): it must not be negative; 0 waits as long as the context lets it", o.lockTimeout)
	}
	connections, is := postgres.DBOf(db).(*sql.DB)
	if !is { // goose needs one
		connections = stdlib.OpenDBFromPool(postgres.DBOf(db).(*pgxpool.Pool)) //nolint:forcetypeassert // see postgres.On
		defer connections.Close()                                              //nolint:errcheck // the pool stays open
	}
	var err error
	reached := false
	failed := postgres.OnSQLDB(connections).OneConnection(ctx, func(tx rate.Session) error {
		reached = true
		err = begin(ctx, tx, o, do)
		return err
	})
	if !reached {
		return fail("cannot connect to the database", failed)
	}
	return err
}

func begin(ctx context.Context, tx rate.Session, o options, do func(*session) error) error {
	// Read committed: each statement after the lock sees what the last holder did.
	if _, err := tx.Exec(ctx, "begin isolation level read committed read write"); err != nil {
		f := fail("cannot begin a transaction", err)
		// A standby refuses to begin one that may write.
		if postgres.Is(err, postgres.FeatureNotSupported, postgres.ReadOnlyTransaction) {
			f.advice = "this server is a standby, which cannot be changed: connect to the primary (several hosts in the URL, and target_session_attrs=read-write)"
		}
		return f
	}
	defer func() {
		if tx.Autocommits() {
			return // it is committed
		}
		// Also if ctx is cancelled. If it fails, the connection is not used again: that undoes
		// everything too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, _ = tx.Exec(ctx, "rollback")
	}()
	if _, err := tx.Exec(ctx, ownSettings); err != nil {
		return fail("cannot prepare the transaction", err)
	}
	if err := takeTurn(ctx, tx, o); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "select pg_catalog.set_config('lock_timeout', $1, true)", milliseconds(o.lockTimeout)); err != nil {
		return fail("cannot prepare the transaction", err)
	}

	connector, err := newTransaction(tx)
	if err != nil {
		return fail("cannot prepare the transaction", err)
	}
	inside := sql.OpenDB(connector)
	defer func() { _ = inside.Close() }()
	files, err := fs.Sub(FS, "sql")
	if err != nil {
		return fail("cannot read the migrations", err)
	}
	return untilUnlocked(ctx, tx, o, func() error {
		// A new Provider each time: one that failed once stays broken.
		provider, err := goose.NewProvider(goose.DialectPostgres, inside, files,
			goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
		if err != nil {
			return fail("cannot read the migrations", err)
		}
		return do(&session{tx: tx, goose: provider, log: o.log})
	})
}

// applied returns what the database has. Under the lock nobody else changes it.
func (s *session) applied(ctx context.Context) (appliedList, error) {
	applied, err := queryApplied(ctx, s.tx)
	if err != nil {
		return nil, fail("cannot read which migrations are applied", err)
	}
	return applied, nil
}

// dropSchema removes the version table and the schema. foreign names objects of others
// that keep the schema.
func (s *session) dropSchema(ctx context.Context) (foreign, err error) {
	there, err := ask(ctx, s.tx, versionTableExists)
	if err == nil && there {
		err = try(ctx, s.tx, "drop table "+versionTable)
	}
	if err != nil {
		return nil, explain(ctx, s.tx, "cannot drop table "+versionTable, err)
	}
	if !there {
		return nil, nil // a schema pglimit without our table is not ours
	}
	// A role that may not create schemas did not make this one, and leaves it.
	made, err := ask(ctx, s.tx, mayCreateSchema)
	if err == nil && made {
		err = try(ctx, s.tx, "drop schema pglimit")
	}
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == dependentObjects {
		return fail("everything of pglimit is removed, but its schema holds something else and stays", pgErr), nil
	}
	if err != nil {
		return nil, explain(ctx, s.tx, "cannot drop schema pglimit", err)
	}
	return nil, nil
}

// try runs statements; if one fails, the transaction can go on.
func try(ctx context.Context, tx rate.Session, statements string) error {
	if _, err := tx.Exec(ctx, "savepoint try"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, statements) // several may be one text, because it has no arguments
	if err != nil {
		_, _ = tx.Exec(ctx, "rollback to savepoint try") // else what follows fails
	}
	return err
}

// execEach sends the statement for each of the names, in the place of its %s.
func (s *session) execEach(ctx context.Context, statement string, names []string) error {
	for _, name := range names {
		if _, err := s.tx.Exec(ctx, fmt.Sprintf(statement, name)); err != nil {
			return err
		}
	}
	return nil
}

// apply runs one migration, up or down. If it fails, the transaction can go on. The error
// is ErrBtreeGist if only the extension was missing.
func (s *session) apply(ctx context.Context, m Migration, up bool) error {
	verb, did := "undo", "undone"
	if up {
		verb, did = "apply", "applied"
	}
	result, err := s.goose.ApplyVersion(ctx, m.Version, up)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		err = partial.Err // goose's types stay in here
	}
	err = postgres.Err(ctx, err)
	if err == nil {
		s.done = append(s.done, func() {
			s.log.InfoContext(ctx, "pglimit: migration "+did, "version", m.Version, "name", m.Name,
				"duration_ms", float64(result.Duration.Microseconds())/1000)
		})
		return nil
	}
	if up && m.Optional {
		if refused := s.refused(ctx, err); refused != nil {
			return refused
		}
	}
	return explain(ctx, s.tx, "cannot "+verb+" migration "+m.Name, err)
}

// commit commits, and then logs what was done.
func (s *session) commit(ctx context.Context) error {
	if _, err := s.tx.Exec(ctx, "commit"); err != nil {
		return fail("cannot commit", err)
	}
	for _, say := range s.done {
		say()
	}
	return nil
}
