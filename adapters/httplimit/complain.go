package httplimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// quiet is how long a kind of failure is not logged again.
const quiet = 10 * time.Second

// complaints of one kind. The zero value is ready for use.
type complaints struct {
	mutex  sync.Mutex
	until  time.Time // when the next may be logged
	missed int       // since the last one that was
}

// hear of a failure, and log it unless one was logged just before.
func (c *complaints) hear(ctx context.Context, logger *slog.Logger, message string, err error) {
	c.mutex.Lock()
	now := time.Now()
	if now.Before(c.until) {
		c.missed++
		c.mutex.Unlock()
		return
	}
	missed := c.missed
	c.until, c.missed = now.Add(quiet), 0
	c.mutex.Unlock()
	logger.ErrorContext(ctx, "httplimit: "+message, "error", err, "more_before", missed)
}
