// Package local decides in this process while Postgres does not answer.
package local

import (
	"math"
	"sync"
	"time"

	xrate "golang.org/x/time/rate"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// maxKeys is how many keys are remembered. Each takes about 200 bytes plus the key.
const maxKeys = 1 << 16

// sweepEvery is how often at most full buckets are swept, when there is no room for a new one.
const sweepEvery = time.Second

// Buckets hold an instance's share of each key's limit.
type Buckets struct {
	instances int64

	mu     sync.Mutex
	latest time.Time // what the clock showed: callers read it before they have the lock
	keys   map[name]*bucket
	swept  time.Time
}

// name of a bucket. Several limiters may share Buckets.
type name struct{ limiter, key string }

// bucket of a key, under the limit that it was made for.
type bucket struct {
	limit  rate.Limit
	tokens *xrate.Limiter
}

// New makes the Buckets of one of that many instances.
func New(instances int) *Buckets {
	return &Buckets{instances: int64(instances), keys: make(map[name]*bucket)}
}

// share is this instance's share of the limit: tokens per second, and the burst.
func (b *Buckets) share(limit rate.Limit) (perSecond float64, burst int64) {
	return float64(time.Second) / float64(limit.Token()) / float64(b.instances), max(1, limit.Burst/b.instances)
}

// Take decides the request by the share of the limit.
func (b *Buckets) Take(r *rate.Request, now time.Time) rate.Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.latest) {
		now = b.latest
	}
	b.latest = now
	perSecond, burst := b.share(r.Limit)
	bucket := b.bucket(r, now)
	if bucket == nil {
		return rate.Decision{RetryAfter: sweepEvery}
	}
	there := int64(bucket.tokens.TokensAt(now))
	unit := max(r.Unit, 1)
	granted := min(r.Tokens, there) / unit * unit
	if granted > 0 && !bucket.tokens.AllowN(now, int(granted)) {
		granted = 0
	}
	left := bucket.tokens.TokensAt(now)
	d := rate.Decision{
		Allowed: granted > 0 || r.Tokens == 0 && there >= unit, Granted: granted,
		Remaining:  min(int64(left), burst), // a float64 may round a large burst up by one
		ResetAfter: refill(float64(burst)-left, perSecond),
	}
	if d.Remaining < unit {
		d.RetryAfter = refill(float64(unit)-left, perSecond)
	}
	return d
}

// refill is how long that many tokens take to come back.
func refill(tokens, perSecond float64) time.Duration {
	seconds := min(max(tokens, 0)/perSecond, rate.MaxWindow.Seconds())
	return time.Duration(math.Ceil(seconds*1e6)) * time.Microsecond
}

// bucket returns the bucket of the request's key, or nil if there is no room for it.
func (b *Buckets) bucket(r *rate.Request, now time.Time) *bucket {
	of := name{r.Limiter, r.Key}
	found := b.keys[of]
	if found != nil && found.limit == r.Limit {
		return found
	}
	if found == nil && len(b.keys) >= maxKeys && !b.sweep(now) {
		return nil
	}
	perSecond, burst := b.share(r.Limit)
	fresh := &bucket{limit: r.Limit, tokens: xrate.NewLimiter(xrate.Limit(perSecond), int(burst))}
	if found != nil { // tokens used under the other limit stay used, rounded up
		used := math.Ceil(float64(found.tokens.Burst()) - found.tokens.TokensAt(now))
		fresh.tokens.AllowN(now, int(min(used, float64(burst))))
	}
	b.keys[of] = fresh
	return fresh
}

// sweep forgets buckets that are full, and says whether there is room.
func (b *Buckets) sweep(now time.Time) bool {
	if now.Sub(b.swept) < sweepEvery {
		return false
	}
	b.swept = now
	for of, bucket := range b.keys {
		if bucket.tokens.TokensAt(now) >= float64(bucket.tokens.Burst()) {
			delete(b.keys, of)
		}
	}
	return len(b.keys) < maxKeys
}
