package httplimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// quiet is how long a kind of failure is not logged again.
const quiet = 10 * time.Second

// failureLog logs failures of one kind. The zero value is ready for use.
type failureLog struct {
	mutex  sync.Mutex
	until  time.Time // when the next may be logged
	missed int       // since the last one that was
}

// log a failure, unless one was logged just before.
func (f *failureLog) log(ctx context.Context, logger *slog.Logger, message string, err error) {
	f.mutex.Lock()
	now := time.Now()
	if now.Before(f.until) {
		f.missed++
		f.mutex.Unlock()
		return
	}
	missed := f.missed
	f.until, f.missed = now.Add(quiet), 0
	f.mutex.Unlock()
	logger.ErrorContext(ctx, "httplimit: "+message, "error", err, "more_before", missed)
}
