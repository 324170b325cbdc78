package promlimit

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Database exports what the schema pglimit costs the database: see [NewDatabase].
type Database struct {
	db      Querier
	logger  *slog.Logger
	reading singleflight.Group
}

var _ prometheus.Collector = (*Database)(nil)

// Querier is what [NewDatabase] reads from: a *pgxpool.Pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// NewDatabase makes a collector that asks the database at each scrape, in some ten short queries:
//
//   - for each table of schema pglimit, with the label table (that of a strategy has its name): rows,
//     dead rows, inserts, updates, HOT updates, deletes, vacuums, bytes with indexes, and whether it is
//     unlogged. The rows are counted up to 10,000, if the role may read the table, and else estimated;
//   - locks on these tables, with the label mode, and sessions that use them and wait for a lock;
//   - when the scheduled cleanup ran, and when it is due next, if the role may read its schedule;
//   - the deadlocks of the whole database, and the WAL of the whole server.
//
// If that takes longer than two seconds, or fails, the gauge pglimit_database_up is 0 and the others
// are missing. The logger hears why; nil: nothing is logged. Scrapes at the same time share the queries,
// so however many there are, they use one connection.
//
// One for each database is enough, in any process. If several instances export the same numbers, take
// their maximum. For several databases in one process, register each with a label of its own:
// prometheus.WrapRegistererWith.
func NewDatabase(db Querier, logger *slog.Logger) *Database {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Database{db: db, logger: logger}
}

const (
	scrapeTime = 2 * time.Second // for all queries

	// countTo bounds the rows that are counted, which takes a millisecond for as many.
	countTo = 10_000
)

var (
	//go:embed tables.sql
	tablesSQL string
	//go:embed server.sql
	serverSQL string
	//go:embed locks.sql
	locksSQL string
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
		gauge("rows", "Rows of the table, exact up to 10,000 where they may be read, else as estimated by Postgres.", "table"),
		gauge("dead_rows", "Dead rows of the table that vacuum has not removed, as estimated by Postgres.", "table"),
		counter("inserts", "Rows inserted.", "table"),
		counter("updates", "Rows updated.", "table"),
		counter("hot_updates", "Rows updated within their page and without their indexes. They also count as updates.", "table"),
		counter("deletes", "Rows deleted, as by the cleanup.", "table"),
		counter("vacuums", "Vacuums of the table, autovacuum's included.", "table"),
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

	// cleanupNumbers are the columns of cleanup.sql.
	cleanupNumbers = []number{
		gauge("cleanup_run_timestamp_seconds", "When the scheduled cleanup ran last."),
		gauge("cleanup_due_timestamp_seconds", "When the scheduled cleanup is due next."),
	}
)

// Describe implements [prometheus.Collector].
func (*Database) Describe(descs chan<- *prometheus.Desc) {
	descs <- up.desc
	descs <- locks.desc
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
	tables, scheduled, err := d.tables(ctx)
	if err != nil {
		return nil, err
	}
	server, err := d.row(ctx, serverSQL, serverNumbers)
	if err != nil {
		return nil, err
	}
	held, err := d.locks(ctx)
	if err != nil {
		return nil, err
	}
	all = append(append(tables, server...), held...)
	if !scheduled {
		return all, nil
	}
	cleanup, err := d.row(ctx, cleanupSQL, cleanupNumbers)
	if errors.Is(err, pgx.ErrNoRows) { // it never ran
		return all, nil
	}
	return append(all, cleanup...), err
}

// tables returns their numbers, and whether the schedule of the cleanup may be read.
func (d *Database) tables(ctx context.Context) (all []prometheus.Metric, scheduled bool, err error) {
	type table struct {
		name     string
		numbers  []float64
		readable bool
	}
	rows, err := d.db.Query(ctx, tablesSQL)
	if err != nil {
		return nil, false, err
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (table, error) {
		t := table{numbers: make([]float64, len(tableNumbers))}
		return t, row.Scan(append(append([]any{&t.name}, pointers(t.numbers)...), &t.readable)...)
	})
	if err != nil {
		return nil, false, err
	}
	for _, t := range tables {
		if t.readable {
			if t.numbers[0], err = d.count(ctx, t.name, t.numbers[0]); err != nil {
				return nil, false, err
			}
			scheduled = scheduled || t.name == "schedule"
		}
		for i, n := range tableNumbers {
			all = append(all, n.is(t.numbers[i], t.name))
		}
	}
	return all, scheduled, nil
}

// count the rows of a table. If there are more than countTo, it returns the larger of that and the
// estimate.
func (d *Database) count(ctx context.Context, table string, estimate float64) (float64, error) {
	rows, err := d.db.Query(ctx, "select count(*)::float8 from (select from "+pgx.Identifier{"pglimit", table}.Sanitize()+" limit $1) r", countTo+1)
	if err != nil {
		return 0, err
	}
	counted, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[float64])
	if counted > countTo {
		counted = max(counted, estimate)
	}
	return counted, err
}

func (d *Database) locks(ctx context.Context) ([]prometheus.Metric, error) {
	rows, err := d.db.Query(ctx, locksSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (prometheus.Metric, error) {
		var mode string
		var held float64
		err := row.Scan(&mode, &held)
		return locks.is(held, mode), err
	})
}

// row returns the numbers that are the columns of the query's only row.
func (d *Database) row(ctx context.Context, sql string, numbers []number) ([]prometheus.Metric, error) {
	rows, err := d.db.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) ([]prometheus.Metric, error) {
		values := make([]float64, len(numbers))
		if err := row.Scan(pointers(values)...); err != nil {
			return nil, err
		}
		var all []prometheus.Metric
		for i, n := range numbers {
			all = append(all, n.is(values[i]))
		}
		return all, nil
	})
}

func pointers(values []float64) []any {
	all := make([]any, len(values))
	for i := range values {
		all[i] = &values[i]
	}
	return all
}
