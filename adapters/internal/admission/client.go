package admission

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// Client is what the adapters of clients share. The zero value is ready for use, also concurrently.
type Client struct {
	Turns    Turns // of a test; nil: the Limiter
	unpaused Failures
}

// Turns are what the adapters of clients use of a Limiter.
type Turns interface {
	Wait(ctx context.Context, key string) (pglimit.Decision, error)
	Pause(ctx context.Context, key string, until time.Time) error
}

// ErrNoLimiter is a fault of the program.
var ErrNoLimiter = errors.New("the field Limiter is nil: set the Limiter whose turns are waited for")

// Wait for a turn.
func (c *Client) Wait(ctx context.Context, limiter *pglimit.Limiter, key string) error {
	if limiter == nil && c.Turns == nil {
		return ErrNoLimiter
	}
	_, err := c.turns(limiter).Wait(ctx, key)
	return err
}

const (
	maxPause     = time.Hour       // by default: a server that says "in a year" has a fault
	pauseTimeout = 5 * time.Second // if the Limiter has NoTimeout: the caller waits for its answer
)

// Pause the key for as long as its server asked, but for longest at most; zero: an hour. It goes on if the context
// ends, because other callers need to know. If it fails, it is logged with the message.
func (c *Client) Pause(
	ctx context.Context, limiter *pglimit.Limiter, key string, asked, longest time.Duration,
	logger *slog.Logger, message string,
) (paused bool) {
	until := time.Now().Add(min(asked, cmp.Or(longest, maxPause)))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	err := c.turns(limiter).Pause(ctx, key, until)
	if err != nil {
		c.unpaused.Log(ctx, cmp.Or(logger, slog.Default()), message, err, "key", key)
	}
	return err == nil
}

func (c *Client) turns(limiter *pglimit.Limiter) Turns {
	if c.Turns != nil {
		return c.Turns
	}
	return limiter
}
