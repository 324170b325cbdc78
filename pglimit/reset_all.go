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
// Other processes may remember a denial for up to their [Config].DenialTTL, and keep
// tokens that they have set aside (see [Config].Leases).
func (l *Limiter) ResetAll(ctx context.Context) (int64, error) {
	strategy, able := l.strategy.(AllResetter)
	if !able {
		return 0, fmt.Errorf("pglimit: the strategy %s cannot reset all keys: %w", l.strategy.Name(), errors.ErrUnsupported)
	}
	var removed int64
	var err error
	if l.leases != nil {
		// A lease of a bucket that is reset after it could be spent besides the full bucket.
		defer l.leases.resume()
		err = l.leases.dropAll(ctx)
	}
	if err == nil {
		removed, err = strategy.ResetAll(ctx, l.db, l.config.Name)
	}
	if l.memory != nil { // also after an error, which may come late
		l.memory.forgetAll()
	}
	if err != nil {
		return removed, fmt.Errorf("pglimit: reset of all keys of %q: %w", l.config.Name, err)
	}
	return removed, nil
}

// dropAll settles the leases of all keys, and lets no other be taken until resume.
func (s *leases) dropAll(ctx context.Context) error {
	s.mu.Lock()
	s.paused++
	s.mu.Unlock()
	holders := s.holders()
	for _, h := range holders {
		s.pause(h) // several settle at a time
	}
	for _, h := range holders {
		for f := s.pause(h); f != nil; f = s.pause(h) {
			select {
			case <-f.done:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// resume taking leases, after dropAll.
func (s *leases) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused--
}
