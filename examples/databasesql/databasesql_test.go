package databasesql

import (
	"database/sql"
	"testing"
	"time"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each library's own types take a token and write an order in one transaction. The second order of a customer
// is one too many.
func TestLibrariesOnDatabaseSQL(t *testing.T) {
	server, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	must(t, err)
	defer func() { must(t, server.Stop()) }()
	config, err := pgx.ParseConfig(server.URL(""))
	must(t, err)
	db := stdlib.OpenDB(*config)
	defer func() { must(t, db.Close()) }()
	_, err = db.ExecContext(t.Context(), "create table orders (customer text)")
	must(t, err)
	started, cleaner, err := Start(t.Context(), db)
	must(t, err)
	defer func() { must(t, started.Close(t.Context())) }()
	patient := started.Config()
	patient.Timeout = time.Minute
	limiter, err := pglimit.NewSQL(db, started.Strategy(), patient)
	must(t, err)
	defer func() { must(t, limiter.Close(t.Context())) }()

	onGORM, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	must(t, err)
	prepared, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{PrepareStmt: true})
	must(t, err)
	onSQLX, onBun, onEnt := sqlx.NewDb(db, "pgx"), bun.NewDB(db, pgdialect.New()), entsql.OpenDB(dialect.Postgres, db)
	for name, order := range map[string]func(key string) error{
		"GORM":          func(key string) error { return GORM(t.Context(), limiter, onGORM, key) },
		"GORM prepared": func(key string) error { return GORM(t.Context(), limiter, prepared, key) },
		"sqlx":          func(key string) error { return SQLX(t.Context(), limiter, onSQLX, key) },
		"Bun":           func(key string) error { return Bun(t.Context(), limiter, onBun, key) },
		"ent":           func(key string) error { return Ent(t.Context(), limiter, onEnt, key) },
		"sqlc":          func(key string) error { return SQLC(t.Context(), limiter, db, key) },
	} {
		if err := order(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := order(name); err == nil {
			t.Errorf("%s: the second order is not one too many", name)
		}
		var orders int
		must(t, db.QueryRowContext(t.Context(), "select count(*) from orders where customer = $1", name).Scan(&orders))
		if orders != 1 {
			t.Errorf("%s: %d orders", name, orders)
		}
	}

	must(t, cleaner.Stop(t.Context())) // its run would be in the way of others
	// What each of them has, or is, is enough for everything.
	fromGORM, err := onGORM.DB()
	must(t, err)
	for name, db := range map[string]*sql.DB{"GORM": fromGORM, "sqlx": onSQLX.DB, "Bun": onBun.DB, "ent": onEnt.DB()} {
		pending, err := migrations.Pending(t.Context(), db, migrations.WithoutExclusionRange())
		if err != nil || len(pending) > 0 {
			t.Errorf("%s: %v, %v", name, pending, err)
		}
		cleaner, err := cleanup.New(db, []strategies.TokenBucket{{}}, cleanup.Config{Timeout: time.Minute})
		must(t, err)
		if _, err := cleaner.RunOnce(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, err = pglimit.NewSQL(db, strategies.TokenBucket{}, pglimit.Config{Name: "orders", Limit: pglimit.PerHour(1)})
		must(t, err)
	}
}
