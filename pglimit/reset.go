package pglimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/pglimit/ratelimit/pglimit/internal/denials"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Reset fills the key's bucket, and ends its block (see [Config.Block]). A call that is under way may be granted
// behind it and be dated up to 100 ms earlier. Other processes keep the tokens that they have leased
// (see [Config.Leases]), and can spend them besides the full bucket. The strategy must be
// a [Resetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]). A bad key is a
// [*RequestError].
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	strategy, able := l.strategy.(Resetter)
	if !able {
		return fmt.Errorf("pglimit: the strategy %s cannot reset a key: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	bucket := rate.Bucket{Limiter: l.config.Name, Key: key}
	err := l.asCaller(ctx, 1, func(ctx context.Context) error {
		defer l.leases.Pause(bucket)() // until the bucket is full: a lease could be spent on top of that
		if err := l.leases.Drop(ctx, bucket); err != nil {
			return err
		}
		return l.call(ctx, "reset", 0, func(ctx context.Context) error {
			_, err := l.nodes.at(ctx, key, l.session, func(session Session) error { return strategy.Reset(ctx, session, l.config.Name, key) })
			return err
		})
	})
	l.forget(bucket) // also after an error: the reset may have been done
	if err != nil {
		return fmt.Errorf("pglimit: reset of %q: %w", key, err)
	}
	return nil
}

// ResetAll fills the buckets of all keys, and returns how many rows it removed: about as
// many as there are keys that were taken from since the last cleanup. The strategy must be
// an [AllResetter]; else the error satisfies errors.Is(err, [errors.ErrUnsupported]).
//
// It reads the whole table of the strategy, in short steps. [Config].Timeout does not
// apply: ctx ends it, and buckets that were reset by then stay full. A take that runs at
// the same time may come before or after the reset of its bucket.
//
// Other processes may remember a denial for up to their [Memory].TTL, and keep the
// tokens that they have leased (see [Config].Leases).
func (l *Limiter) ResetAll(ctx context.Context) (int64, error) {
	strategy, able := l.strategy.(AllResetter)
	if !able {
		return 0, fmt.Errorf("pglimit: the strategy %s cannot reset all keys: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	if err := l.waiting.Enter(1); err != nil {
		return 0, err
	}
	defer l.waiting.Leave(1)
	var removed int64
	err := l.circuit.Admit(ctx)
	if err == nil {
		defer l.leases.Pause(rate.Bucket{})() // until the buckets are full: it could be spent on top of that
		err = l.leases.Drop(ctx, rate.Bucket{})
	}
	if err == nil {
		err = l.call(ctx, "reset_all", 0, func(ctx context.Context) error {
			removed, err = strategy.ResetAll(ctx, l.session, l.config.Name)
			return err
		})
	}
	l.eachMemory((*denials.Memory).ForgetAll) // also after an error: some keys may have been reset
	if err != nil {
		return removed, fmt.Errorf("pglimit: reset of all keys of %q: %w", l.config.Name, err)
	}
	return removed, nil
}
