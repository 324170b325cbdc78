package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
)

// tidyTime is how long removing what a run left behind may take, also after Ctrl-C; with tidyKey for each key.
const (
	tidyTime = 30 * time.Second
	tidyKey  = 30 * time.Microsecond // five minutes for ten million
)

// tidy calls remove, also when the context has ended, and notes its error.
func (b *bench) tidy(ctx context.Context, keys int, remove func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime+time.Duration(keys)*tidyKey)
	defer cancel()
	if err := remove(ctx); err != nil {
		b.untidy = errors.Join(b.untidy, fmt.Errorf("cannot remove what the run left behind: %w", err))
	}
}

// deleteRows deletes the rows of the limiter. The rows of the published statements go
// with their schema.
func (b *bench) deleteRows(ctx context.Context, s pglimit.Strategy, limiter string) error {
	if scenario.AsPublished(s) {
		return nil
	}
	table := pgx.Identifier(strings.Split(scenario.TableOf(s), ".")).Sanitize()
	_, err := b.observer.Exec(ctx, "delete from "+table+" where limiter = $1", limiter)
	return err
}

// What the names of a bench begin with; its id follows.
const (
	applicationPrefix = "pglimit bench "
	schemaPrefix      = "pglimit_published_"
)

func (b *bench) schema() string { return schemaPrefix + b.id }

// dropAbandoned drops the schemas of runs that were killed: their connections are gone.
// It leaves the schemas of roles whose rights this role lacks, because it does not see
// their connections.
func (b *bench) dropAbandoned(ctx context.Context) error {
	rows, err := b.observer.Query(ctx, `
		select n.nspname::text
		from pg_catalog.pg_namespace n
		where n.nspname ~ ('^' || $1::text || '[0-9a-f]{8}$') and pg_catalog.pg_has_role(n.nspowner, 'usage')
			and not exists (
				select from pg_catalog.pg_stat_activity a
				where starts_with(a.application_name, $2::text || right(n.nspname::text, 8)))`,
		schemaPrefix, applicationPrefix)
	if err != nil {
		return err
	}
	abandoned, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, schema := range abandoned {
		if err := published.Drop(ctx, postgres.OnPool(b.observer), schema); err != nil {
			return fmt.Errorf("cannot drop schema %s, which an earlier run left behind: %w", schema, err)
		}
	}
	return nil
}
