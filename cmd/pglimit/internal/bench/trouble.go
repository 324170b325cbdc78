package bench

import (
	"context"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/trouble"
)

// trouble makes the scenario's trouble until the function that it returns is called; that
// returns what was made. Nil: none was wanted.
func (b *bench) trouble(ctx context.Context, j job, limiter string, keys []string) (stop func() (*result.Trouble, error)) {
	wanted := j.scenario.Trouble
	plan := trouble.Plan{LockShare: float64(wanted.LockShare), RestartAfter: wanted.RestartAfter, Seed: b.config.Seed}
	if !plan.Any() {
		return func() (*result.Trouble, error) { return nil, nil }
	}
	target := trouble.Target{
		Database: b.place.Database.ConnConfig, Application: b.application() + " trouble",
		Table: scenario.TableOf(j.subject.Strategy), Limiter: limiter, Keys: keys, Restart: b.place.Restart,
	}
	if scenario.AsPublished(j.subject.Strategy) { // one table each, without that column
		target.Limiter = ""
	}
	ctx, cancel := context.WithCancel(ctx)
	var made trouble.Report
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		made, failed = plan.Run(ctx, target)
	}()
	return func() (*result.Trouble, error) {
		cancel()
		<-done
		return &result.Trouble{
			LockedKeys: made.LockedKeys, RowLocks: made.RowLocks, HeldSeconds: round(made.Held.Seconds(), 3),
			Restarted: made.Restarted, AwaySeconds: round(made.Away.Seconds(), 3),
		}, failed
	}
}
