package trouble

import (
	"context"
	"fmt"
	"time"
)

// restartWithin bounds a restart: a shutdown with its checkpoint, and a start.
const restartWithin = 3 * time.Minute

// restartAfter restarts the server once, that long from now, unless ctx ends sooner.
func restartAfter(ctx context.Context, after time.Duration, restart func(context.Context) error) (done bool, away time.Duration, err error) {
	if !wait(ctx, after) {
		return false, 0, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restartWithin)
	defer cancel()
	began := time.Now()
	if err := restart(ctx); err != nil {
		return false, 0, fmt.Errorf("trouble: restarting the server: %w", err)
	}
	return true, time.Since(began), nil
}

// wait returns after that long, or false as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
