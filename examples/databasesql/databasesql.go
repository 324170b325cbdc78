// Package databasesql shows pglimit beside the libraries that people use on top of database/sql. The *sql.DB
// that each of them has migrates, decides and cleans up; no other pool is needed.
package databasesql

import (
	"context"
	"database/sql"
	"fmt"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"gorm.io/gorm"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/examples/databasesql/queries"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Start is what a service does at its start. Close the limiter and stop the cleaner before the db is closed.
func Start(ctx context.Context, db *sql.DB) (*pglimit.Limiter, *cleanup.Cleaner, error) {
	if err := migrations.Up(ctx, db, migrations.WithoutExclusionRange()); err != nil {
		return nil, nil, err
	}
	cleaner, err := cleanup.New(db, []strategies.TokenBucket{{}}, cleanup.Config{})
	if err != nil {
		return nil, nil, err
	}
	limiter, err := pglimit.NewSQL(db, strategies.TokenBucket{}, pglimit.Config{Name: "orders", Limit: pglimit.PerHour(1)})
	if err != nil {
		return nil, nil, err
	}
	err = cleaner.Start(ctx)
	return limiter, cleaner, err
}

// take takes a token in the transaction: if that is rolled back, so is the take.
func take(ctx context.Context, limiter *pglimit.Limiter, tx pglimit.SQLTx, key string) error {
	d, err := limiter.On(pglimit.InSQLTx(tx)).Allow(ctx, key)
	if err == nil && !d.Allowed {
		err = fmt.Errorf("try again in %v", d.RetryAfter)
	}
	return err
}

// GORM: a *gorm.DB gives its *sql.DB, and in a transaction its *sql.Tx (or its own, with PrepareStmt).
func GORM(ctx context.Context, limiter *pglimit.Limiter, db *gorm.DB, key string) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		inTx, is := tx.Statement.ConnPool.(pglimit.SQLTx)
		if !is {
			return fmt.Errorf("a %T is no transaction", tx.Statement.ConnPool)
		}
		if err := take(ctx, limiter, inTx, key); err != nil {
			return err
		}
		return tx.Exec("insert into orders (customer) values (?)", key).Error
	})
}

// SQLX: a *sqlx.Tx embeds what pglimit takes, and a *sqlx.DB has it as DB.
func SQLX(ctx context.Context, limiter *pglimit.Limiter, db *sqlx.DB, key string) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing to undo after the commit
	if err := take(ctx, limiter, tx, key); err != nil {
		return err
	}
	if _, err := tx.NamedExecContext(ctx, "insert into orders (customer) values (:customer)", map[string]any{"customer": key}); err != nil {
		return err
	}
	return tx.Commit()
}

// Bun: pass the Tx in a bun.Tx, whose own methods read a query in another way.
func Bun(ctx context.Context, limiter *pglimit.Limiter, db *bun.DB, key string) error {
	return db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if err := take(ctx, limiter, tx.Tx, key); err != nil {
			return err
		}
		_, err := tx.NewRaw("insert into orders (customer) values (?)", key).Exec(ctx)
		return err
	})
}

// Ent: the transaction of ent's driver, from which ent.NewClient(ent.Driver(tx)) makes a client.
func Ent(ctx context.Context, limiter *pglimit.Limiter, driver *entsql.Driver, key string) error {
	tx, err := driver.Tx(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing to undo after the commit
	inTx, is := tx.(pglimit.SQLTx)
	if !is {
		return fmt.Errorf("a %T is no transaction", tx)
	}
	if err := take(ctx, limiter, inTx, key); err != nil {
		return err
	}
	insert, args := entsql.Dialect(dialect.Postgres).Insert("orders").Columns("customer").Values(key).Query()
	if err := tx.Exec(ctx, insert, args, nil); err != nil {
		return err
	}
	return tx.Commit()
}

// SQLC: the *sql.Tx that WithTx of the generated code takes.
func SQLC(ctx context.Context, limiter *pglimit.Limiter, db *sql.DB, key string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing to undo after the commit
	if err := take(ctx, limiter, tx, key); err != nil {
		return err
	}
	if err := queries.New(db).WithTx(tx).AddOrder(ctx, key); err != nil {
		return err
	}
	return tx.Commit()
}
