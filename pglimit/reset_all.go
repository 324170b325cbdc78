package pglimit

import (
	"context"
	"errors"
	"fmt"
)

// ResetAll fills the buckets of all keys, and says how many rows that removed: about as
// many as keys were taken from since the last cleanup. The strategy must be an
// [AllResetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
//
// It reads the whole table of the strategy, in short steps, and takes as long as that
// takes: [Config].Timeout does not apply, end it by ctx. What was reset by then stays
// so. A take that goes on at the same time may count before or after.
//
// Other processes may remember a denial for up to their [Memory].TTL, and keep
// tokens that they have set aside (see [Config].Leases).
func (l *Limiter) ResetAll(ctx context.Context) (int64, error) {
	strategy, able := l.strategy.(AllResetter)
	if !able {
		return 0, fmt.Errorf("pglimit: the strategy %s cannot reset all keys: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	var removed int64
	// A lease of a bucket that is reset after it could be spent besides the full bucket.
	defer l.leases.Resume()
	err := l.leases.DropAll(ctx)
	if err == nil {
		err = l.guard(func() error {
			removed, err = strategy.ResetAll(ctx, l.session, l.config.Name)
			return err
		})
	}
	l.denials.ForgetAll() // also after an error, which may come late
	if err != nil {
		return removed, fmt.Errorf("pglimit: reset of all keys of %q: %w", l.config.Name, err)
	}
	return removed, nil
}
