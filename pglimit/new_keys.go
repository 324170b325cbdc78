package pglimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/newkeys"
)

// NewKeys bounds how many keys without a row get one, for limiters whose keys a client can make up: see [Config]. It
// is off unless it has a Limit.
type NewKeys struct {
	// Limit of new keys, all keys of the Limiter and all processes together: 100 a second makes at most so many rows,
	// after a burst. Its bucket is that of the constant key "all" of a limiter named Name + " (new keys)", by the
	// same strategy. All Limiters of one Name should have the same. Zero: there is no bound.
	Limit Limit

	// OnRefused answers a request for a new key that Limit refuses. Its Err is [ErrTooManyNewKeys]. [FailLocal]
	// decides by this instance's share of the request's limit, and makes no row; [FailOpen] grants, and nothing is
	// charged. Nil: the request is denied, and RetryAfter says when the next new key can come. An error is returned
	// to the caller.
	//
	// For a group of DoAll it is called as OnError is. Decision.Source is FromNewKeys, whatever it answers.
	OnRefused func(ctx context.Context, failed Failure) (Decision, error)

	// Keys is how many keys this process remembers to have a row. Any other key costs a round trip more, to look.
	// Only keys with a row are remembered, so a flood of others displaces none. Each takes about 100 bytes plus the
	// key. Zero: 65,536.
	Keys int
}

// ErrTooManyNewKeys: a request is for a key without a row, and [Config].NewKeys lets no more of these through now.
var ErrTooManyNewKeys = errors.New("pglimit: too many new keys: Config.NewKeys lets no more of them through now")

func (c Config) validateNewKeys(strategy Strategy) error {
	n := &c.NewKeys
	if n.Limit == (Limit{}) {
		if n.OnRefused != nil || n.Keys != 0 {
			return &ConfigError{"NewKeys.Limit", errors.New("is missing: set it, such as PerSecond(100), or leave NewKeys out")}
		}
		return nil
	}
	if err := checkLimit(strategy, n.Limit); err != nil {
		return &ConfigError{"NewKeys.Limit", err}
	}
	if n.Keys < 0 {
		return &ConfigError{"NewKeys.Keys", fmt.Errorf("is %d: it must not be negative; 0 means %d", n.Keys, defaultDenialKeys)}
	}
	if most := MaxLimiterBytes - len(newkeys.Suffix); len(c.Name) > most {
		return &ConfigError{"Name", fmt.Errorf("has %d bytes: with Config.NewKeys at most %d are allowed, because new keys are counted as %q", len(c.Name), most, "name"+newkeys.Suffix)}
	}
	empty := Decision{Limit: n.Limit, RetryAfter: time.Second, ResetAfter: time.Second}
	if !strategy.Rule().Denies(empty, 1, 1, 0) { // each refusal would be a write, and keep the next new key out
		return &ConfigError{"NewKeys.Limit", fmt.Errorf("needs a strategy that does not count denials, and %s does: leave NewKeys out, or use strategies.TokenBucket{}", strategy.Name())}
	}
	return nil
}
