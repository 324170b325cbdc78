// Package local decides in this process while Postgres does not answer.
package local

import (
	"sync"
	"time"

	arithmetic "github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxKeys is how many keys are remembered. Each takes about 160 bytes plus the key.
const maxKeys = 1 << 16

// sweepEvery is how often at most full buckets are swept, when there is no room for a new one.
const sweepEvery = time.Second

// Buckets hold an instance's share of each key's limit. They count as Postgres does, also for
// requests under different limits, and while the share changes.
type Buckets struct {
	mu     sync.Mutex
	start  time.Time // the times below count from here
	latest int64     // nanoseconds; what the clock showed: callers read it before they have the lock
	keys   map[rate.Bucket]arithmetic.Row
	swept  int64
}

// New makes Buckets.
func New() *Buckets { return &Buckets{keys: make(map[rate.Bucket]arithmetic.Row)} }

// Share is the Buckets of one of so many instances.
type Share struct {
	*Buckets
	instances int64
}

// Of that many instances.
func (b *Buckets) Of(instances int) Share { return Share{b, int64(instances)} }

// Take decides the request by the share of the limit.
func (b Share) Take(r *rate.Request, now time.Time) rate.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	nowNS := b.clock(now)
	bucket, known := b.keys[r.Bucket()]
	if !known && b.room([]rate.Request{*r}, nowNS) < 1 {
		return noRoom
	}
	return b.takeFrom(bucket, r, nowNS)
}

// TakeAll decides a group of requests for different buckets: all are granted, or none. If not,
// Allowed of the decisions says which of the buckets had the tokens.
func (b Share) TakeAll(group []rate.Request, now time.Time) []rate.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	nowNS := b.clock(now)
	decisions, all := make([]rate.Decision, len(group)), true
	room := b.room(group, nowNS)
	for i, peek := range group {
		peek.Tokens = 0
		bucket, known := b.keys[peek.Bucket()]
		if !known {
			room--
		}
		decisions[i] = noRoom
		if known || room >= 0 {
			decisions[i] = b.takeFrom(bucket, &peek, nowNS)
		}
		all = all && decisions[i].Allowed
	}
	for i := range group {
		if all {
			decisions[i] = b.takeFrom(b.keys[group[i].Bucket()], &group[i], nowNS)
		}
	}
	return decisions
}

// noRoom is the denial of a new key.
var noRoom = rate.Decision{RetryAfter: sweepEvery}

// room is for how many new keys there is room. It sweeps if those of the requests are more.
func (b *Buckets) room(requests []rate.Request, nowNS int64) int {
	newcomers := 0
	for i := range requests {
		if _, known := b.keys[requests[i].Bucket()]; !known {
			newcomers++
		}
	}
	if len(b.keys)+newcomers > maxKeys {
		b.sweep(nowNS)
	}
	return maxKeys - len(b.keys)
}

func (b Share) takeFrom(bucket arithmetic.Row, r *rate.Request, nowNS int64) rate.Decision {
	mine := *r
	mine.Limit.Calendar = ""                                                 // a bucket that fills in the longest time of a window
	mine.Limit, mine.Ahead = arithmetic.Share(mine.Limit, 1, b.instances), 0 // nobody can wait in turn
	granted := bucket.Grantable(nowNS, &mine)
	if granted > 0 {
		bucket = bucket.Take(nowNS, granted, mine.Limit)
		b.keys[r.Bucket()] = bucket
	}
	d := bucket.Decision(&mine, nowNS, granted)
	if unit, burst := r.Unit, mine.Limit.Burst; unit > burst { // it can never be granted
		d.RetryAfter = min(arithmetic.RefillTime(mine.Limit, unit-d.Remaining), rate.MaxWindow)
	}
	d.At, d.HasRow = time.Time{}, false // it is not Postgres's
	return d
}

// clock is the time in nanoseconds. It does not go back.
func (b *Buckets) clock(now time.Time) int64 {
	if b.start.IsZero() {
		b.start = now.Add(-sweepEvery) // so that the first sweep is due
	}
	b.latest = max(b.latest, now.Sub(b.start).Nanoseconds())
	return b.latest
}

// sweep forgets buckets that are full.
func (b *Buckets) sweep(nowNS int64) {
	if nowNS-b.swept < int64(sweepEvery) {
		return
	}
	b.swept = nowNS
	for of, bucket := range b.keys {
		if bucket.FullNS <= nowNS {
			delete(b.keys, of)
		}
	}
}
