package pglimittest

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// GiveBack gives tokens back, for each refund in turn.
func (s *Strategy) GiveBack(ctx context.Context, _ rate.Session, refunds []rate.Refund) error {
	for i := range refunds {
		if err := refunds[i].Validate(); err != nil {
			return err
		}
	}
	return s.locked(ctx, func(nowNS int64) error {
		for i := range refunds {
			n := refunds[i].Bucket()
			row := s.buckets[n]
			s.keep(n, row, row.GiveBack(nowNS, &refunds[i]))
		}
		return nil
	})
}

// Lease settles the old lease and takes a new one.
func (s *Strategy) Lease(ctx context.Context, _ rate.Session, r rate.LeaseRequest) (lease rate.Lease, err error) {
	if err := r.Validate(); err != nil {
		return rate.Lease{}, err
	}
	look := rate.Request{Limiter: r.Limiter, Key: r.Key, Limit: r.Limit, Unit: 1}
	err = s.locked(ctx, func(nowNS int64) error {
		n := rate.Bucket{Limiter: r.Limiter, Key: r.Key}
		row := s.buckets[n]
		var b bucket.Row
		b, lease.Tokens = row.Lease(nowNS, &r)
		s.keep(n, row, b)
		lease.Left = b.Decision(&look, nowNS, 0)
		lease.At = lease.Left.At
		if lease.Tokens > 0 {
			lease.Until = time.Unix(0, b.UntilNS).UTC()
		}
		return nil
	})
	return lease, err
}

// Reset forgets the bucket, and the key's denials, which ends its block. What IDs were granted is
// kept.
func (s *Strategy) Reset(ctx context.Context, _ rate.Session, limiter, key string) error {
	if err := rate.CheckLimiter(limiter); err != nil {
		return err
	}
	if err := rate.CheckKey(key); err != nil {
		return err
	}
	return s.locked(ctx, func(int64) error {
		delete(s.buckets, rate.Bucket{Limiter: limiter, Key: key})
		delete(s.denied, rate.Bucket{Limiter: limiter, Key: key})
		return nil
	})
}

// ResetAll forgets the buckets and denials of the limiter's keys, at once.
func (s *Strategy) ResetAll(ctx context.Context, _ rate.Session, limiter string) (removed int64, err error) {
	if err := rate.CheckLimiter(limiter); err != nil {
		return 0, err
	}
	err = s.locked(ctx, func(int64) error {
		removed = forget(s.buckets, func(n rate.Bucket, _ bucket.Row) bool { return n.Limiter == limiter }) +
			forget(s.denied, func(n rate.Bucket, _ denied) bool { return n.Limiter == limiter })
		return nil
	})
	return removed, err
}

// Sweep forgets all buckets that have been full for a minute, and IDs and denials that have
// meant nothing for as long, at once, whatever the limit.
func (s *Strategy) Sweep(ctx context.Context, _ rate.Session, from rate.Cursor, limit int) (swept rate.Swept, err error) {
	if from < 0 || limit < 1 {
		return rate.Swept{}, fmt.Errorf("pglimittest: Sweep from %d with a limit of %d: from must be a Cursor of another Sweep or 0, limit at least 1", from, limit)
	}
	err = s.locked(ctx, func(nowNS int64) error {
		before := nowNS - int64(time.Minute)
		swept.Removed = forget(s.buckets, func(_ rate.Bucket, b bucket.Row) bool { return b.FullBy() <= before }) +
			forget(s.answers, func(_ id, a answer) bool { return a.untilNS <= before }) +
			forget(s.denied, func(_ rate.Bucket, k denied) bool { return k.forgetNS <= before })
		return nil
	})
	swept.Done = err == nil
	return swept, err
}

// forget removes what is to be forgotten, and returns how many that were.
func forget[K comparable, V any](from map[K]V, these func(K, V) bool) int64 {
	before := len(from)
	maps.DeleteFunc(from, these)
	return int64(before - len(from))
}
