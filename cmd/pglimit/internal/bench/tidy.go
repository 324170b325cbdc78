package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
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

// schema of the write-up's tables.
func (b *bench) schema() string { return "pglimit_published_" + b.id }
