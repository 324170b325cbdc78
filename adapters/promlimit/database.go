package promlimit

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Database exports what the schema pglimit contains and costs the database: see [NewDatabase].
type Database struct {
	open    func() (db *sql.DB, release func())
	logger  *slog.Logger
	reading singleflight.Group
}

var _ prometheus.Collector = (*Database)(nil)

// DB is what [NewDatabase] reads from: a *pgxpool.Pool, or a *sql.DB with the driver
// github.com/jackc/pgx/v5/stdlib or github.com/lib/pq.
type DB interface{ *pgxpool.Pool | *sql.DB }

// NewDatabase makes a collector that queries the database at each scrape, with about ten short queries:
//
//   - for each table of the schema pglimit, with the label table (a strategy's table has its name): rows, dead rows,
//     inserts, updates, HOT updates, deletes, vacuums, blocks that were not in shared_buffers, bytes with indexes, and
//     whether it is unlogged. Up to 10,000 rows are counted, if the role may read the table and it has at most 64 MB;
//     otherwise they are estimated;
//   - for each such table with at most 10,000 rows and 100 limiters, the rows of each limiter;
//   - the permits of each semaphore that all processes hold, if the role may read their table;
//   - locks on these tables, with the label mode, and sessions that use them and wait for a lock;
//   - when the scheduled cleanup ran, and when it is due next, if the role may read its schedule;
//   - the deadlocks of the whole database, and the WAL of the whole server.
//
// If that takes longer than two seconds, or fails, the gauge pglimit_database_up is 0 and the others are missing. The
// logger gets the reason; nil: nothing is logged. Concurrent scrapes share the queries, and so use one connection.
//
// One collector per database is enough, in any process. If several instances export the same numbers, take their
// maximum. For several databases in one process, register each with its own label: prometheus.WrapRegistererWith.
func NewDatabase[D DB](db D, logger *slog.Logger) *Database {
	d := &Database{logger: logger}
	if logger == nil {
		d.logger = slog.New(slog.DiscardHandler)
	}
	switch db := any(db).(type) {
	case *sql.DB:
		d.open = func() (*sql.DB, func()) { return db, func() {} }
	case *pgxpool.Pool:
		d.open = func() (*sql.DB, func()) {
			onPool := stdlib.OpenDBFromPool(db)
			return onPool, func() { _ = onPool.Close() }
		}
	}
	return d
}

const (
	scrapeTime = 2 * time.Second // for all queries

	// countTo bounds the rows that are counted, which takes a millisecond.
	countTo = 10_000

	// countBytes bounds the tables whose rows are counted. A table that once had many rows may have empty pages, which
	// are read too: that took 1.6 seconds after the cleanup of ten million rows.
	countBytes = 64 << 20

	// maxLimiters bounds the series of a table, because clients may influence how many limiters there are.
	maxLimiters = 100
)

var (
	//go:embed tables.sql
	tablesSQL string
	//go:embed server.sql
	serverSQL string
	//go:embed locks.sql
	locksSQL string
	//go:embed permits.sql
	permitsSQL string
	//go:embed cleanup.sql
	cleanupSQL string
)

// number is one metric of the database.
type number struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) number {
	return number{prometheus.NewDesc("pglimit_database_"+name+"_total", help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) number {
	return number{prometheus.NewDesc("pglimit_database_"+name, help, labels, nil), prometheus.GaugeValue}
}

func (n number) is(value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(n.desc, n.kind, value, labels...)
}

var (
	up = gauge("up", "1 if this scrape could read the numbers of the database, else 0.")

	// tableNumbers are the columns of tables.sql.
	tableNumbers = []number{
		gauge("rows", "Rows of the table, exact up to 10,000 where they may be read and the table has no more than 64 MB, else as estimated by Postgres.", "table"),
		gauge("dead_rows", "Dead rows of the table that vacuum has not removed, as estimated by Postgres.", "table"),
		counter("inserts", "Rows inserted.", "table"),
		counter("updates", "Rows updated.", "table"),
		counter("hot_updates", "Rows updated within their page and without their indexes. They also count as updates.", "table"),
		counter("deletes", "Rows deleted, as by the cleanup.", "table"),
		counter("vacuums", "Vacuums of the table, autovacuum's included.", "table"),
		counter("blocks_read", "Blocks of the table and its indexes that were not in shared_buffers.", "table"),
		gauge("table_bytes", "Size of the table with its indexes.", "table"),
		gauge("unlogged", "1 if the table is unlogged, so that it is empty after a crash, else 0.", "table"),
	}

	// serverNumbers are the columns of server.sql.
	serverNumbers = []number{
		counter("deadlocks", "Deadlocks in the whole database."),
		counter("wal_bytes", "Write-ahead log written by the whole server."),
		gauge("stats_reset_timestamp_seconds", "When the server's statistics began: its last crash, unless somebody has reset them."),
		gauge("lock_waiters", "Sessions that use a table of schema pglimit and wait for a lock."),
	}

	locks = gauge("locks", "Locks held on the tables of schema pglimit.", "mode")

	limiterRows = gauge("limiter_rows", "Rows of one limiter, in a table that has no more than 10,000 of 100 limiters and may be read.", "table", "limiter")

	permits = gauge("permits", "Weight of the permits that are held, in all processes.", "limiter")

	// cleanupNumbers are the columns of cleanup.sql.
	cleanupNumbers = []number{
		gauge("cleanup_run_timestamp_seconds", "When the scheduled cleanup ran last."),
		gauge("cleanup_due_timestamp_seconds", "When the scheduled cleanup is due next."),
	}
)

// Describe implements [prometheus.Collector].
func (*Database) Describe(descs chan<- *prometheus.Desc) {
	descs <- up.desc
	for _, n := range []number{locks, limiterRows, permits} {
		descs <- n.desc
	}
	for _, numbers := range [][]number{tableNumbers, serverNumbers, cleanupNumbers} {
		for _, n := range numbers {
			descs <- n.desc
		}
	}
}

// Collect implements [prometheus.Collector].
func (d *Database) Collect(metrics chan<- prometheus.Metric) {
	read, _, _ := d.reading.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
		defer cancel()
		read, err := d.read(ctx)
		if err != nil {
			d.logger.ErrorContext(ctx, "pglimit: the numbers of the database could not be read for a scrape", "error", err)
			return []prometheus.Metric{up.is(0)}, nil
		}
		return append(read, up.is(1)), nil
	})
	for _, metric := range read.([]prometheus.Metric) {
		metrics <- metric
	}
}

// read all numbers, or none.
func (d *Database) read(ctx context.Context) (all []prometheus.Metric, err error) {
	db, release := d.open()
	defer release()
	from := reader{db}
	tables, scheduled, err := from.tables(ctx)
	if err != nil {
		return nil, err
	}
	server, err := from.row(ctx, serverSQL, serverNumbers)
	if err != nil {
		return nil, err
	}
	held, err := from.locks(ctx)
	if err != nil {
		return nil, err
	}
	all = append(append(tables, server...), held...)
	if !scheduled {
		return all, nil
	}
	cleanup, err := from.row(ctx, cleanupSQL, cleanupNumbers)
	if errors.Is(err, sql.ErrNoRows) { // it never ran
		return all, nil
	}
	return append(all, cleanup...), err
}

type reader struct{ *sql.DB }

// each calls scan with each row of the query.
func (r reader) each(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) error {
	rows, err := r.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // rows.Err has told it
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// tables returns their numbers, and whether the schedule of the cleanup may be read.
func (r reader) tables(ctx context.Context) (all []prometheus.Metric, scheduled bool, err error) {
	type table struct {
		name     string
		numbers  []float64
		bytes    int64
		readable bool
		limiters bool
	}
	var tables []table
	err = r.each(ctx, func(row *sql.Rows) error {
		t := table{numbers: make([]float64, len(tableNumbers))}
		err := row.Scan(append(append([]any{&t.name}, pointers(t.numbers)...), &t.bytes, &t.readable, &t.limiters)...)
		tables = append(tables, t)
		return err
	}, tablesSQL)
	if err != nil {
		return nil, false, err
	}
	for _, t := range tables {
		if t.readable && t.bytes <= countBytes {
			limiter := "''"
			if t.limiters {
				limiter = "limiter"
			}
			var ofLimiters []prometheus.Metric
			if t.numbers[0], ofLimiters, err = r.count(ctx, t.name, limiter, t.numbers[0]); err != nil {
				return nil, false, err
			}
			if t.limiters {
				all = append(all, ofLimiters...)
			}
			if t.name == "permits" {
				held, err := r.labelled(ctx, permitsSQL, func(limiter string, weight float64) prometheus.Metric { return permits.is(weight, limiter) })
				if err != nil {
					return nil, false, err
				}
				if len(held) <= maxLimiters {
					all = append(all, held...)
				}
			}
		}
		scheduled = scheduled || t.readable && t.name == "schedule"
		for i, n := range tableNumbers {
			all = append(all, n.is(t.numbers[i], t.name))
		}
	}
	return all, scheduled, nil
}

// count returns the rows of a table, and those of each limiter. If there are more than countTo, it returns the larger
// of countTo and the estimate, and nothing for the limiters.
func (r reader) count(ctx context.Context, table, limiter string, estimate float64) (counted float64, ofLimiters []prometheus.Metric, err error) {
	query := "select l, count(*)::float8 from (select " + limiter + " as l from " + pgx.Identifier{"pglimit", table}.Sanitize() + " limit $1) r group by l"
	ofLimiters, err = r.labelled(ctx, query, func(limiter string, rows float64) prometheus.Metric {
		counted += rows
		return limiterRows.is(rows, table, limiter)
	}, countTo+1)
	if counted > countTo {
		counted, ofLimiters = max(counted, estimate), nil
	}
	if len(ofLimiters) > maxLimiters {
		ofLimiters = nil
	}
	return counted, ofLimiters, err
}

func (r reader) locks(ctx context.Context) ([]prometheus.Metric, error) {
	return r.labelled(ctx, locksSQL, func(mode string, held float64) prometheus.Metric { return locks.is(held, mode) })
}

// labelled makes a metric of each row of the query, which has a label and a number.
func (r reader) labelled(ctx context.Context, query string, metric func(string, float64) prometheus.Metric, args ...any) (all []prometheus.Metric, err error) {
	err = r.each(ctx, func(row *sql.Rows) error {
		var label string
		var value float64
		err := row.Scan(&label, &value)
		all = append(all, metric(label, value))
		return err
	}, query, args...)
	return all, err
}

// row returns the numbers that are the columns of the query's only row.
func (r reader) row(ctx context.Context, query string, numbers []number) (all []prometheus.Metric, err error) {
	values := make([]float64, len(numbers))
	if err := r.QueryRowContext(ctx, query).Scan(pointers(values)...); err != nil {
		return nil, err
	}
	for i, n := range numbers {
		all = append(all, n.is(values[i]))
	}
	return all, nil
}

func pointers(values []float64) []any {
	all := make([]any, len(values))
	for i := range values {
		all[i] = &values[i]
	}
	return all
}
