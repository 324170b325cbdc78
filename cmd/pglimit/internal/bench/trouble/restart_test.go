package trouble

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/strategies"
)

// Both kinds of trouble at once: rows are held before the restart and after it.
func TestLocksGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	server, pool := newServer(t)
	target := newTarget(t, pool, strategies.TokenBucket{}, 3)
	restarted := make(chan struct{})
	target.Restart = func(ctx context.Context) error {
		defer close(restarted)
		return server.Restart(ctx)
	}
	r := start(t, Plan{LockShare: 1, LockFor: 20 * time.Millisecond, RestartAfter: 300 * time.Millisecond}, target)
	<-restarted
	pool.Reset() // its connections are those from before
	awaitLocked(t, pool, target, 3)
	report := r.stop(t)
	if !report.Restarted || report.Away <= 0 || report.Lost < 1 || report.RowLocks < 6 {
		t.Errorf("%+v", report)
	}
	t.Logf("%+v", report)
}
