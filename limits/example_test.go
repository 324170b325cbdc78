package limits_test

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/limits"
)

// A customer gets more for a day. Later somebody asks who has done that.
func Example() {
	raise := func(ctx context.Context, pool *pgxpool.Pool) error {
		table := limits.New(pool)
		now, err := table.Now(ctx)
		if err != nil {
			return err
		}
		replaced, err := table.Set(ctx, limits.Rule{Limiter: "api", Key: "user:42", Limit: "500/1m", Expires: now.Add(24 * time.Hour), Note: "ticket 7", By: "ann"})
		if err != nil {
			return err
		}
		fmt.Println("was", replaced) // nil: there was none
		history, err := table.History(ctx, "api", "user:42", 20)
		for _, change := range history { // of the rules for its prefixes and for all keys, too
			if rule := cmp.Or(change.After, change.Before); rule.Key == "user:42" {
				fmt.Println(change.At, change.By, change.Note)
			}
		}
		return err
	}
	_ = raise
}
