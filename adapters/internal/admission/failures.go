package admission

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// quiet is how long a kind of failure is not logged again.
const quiet = 10 * time.Second

// maxText is how many bytes of a text are logged.
const maxText = 1 << 10

// Failures of one kind are logged rarely and in short lines, because clients may cause any number of them, with texts
// of any length. The zero value is ready for use, also concurrently.
type Failures struct {
	mutex  sync.Mutex
	until  time.Time // when the next may be logged
	missed int       // since the last one that was
}

// Log a failure, unless one was logged just before. where has names and texts of further details.
func (l *Failures) Log(ctx context.Context, logger *slog.Logger, message string, err error, where ...string) {
	l.mutex.Lock()
	now := time.Now()
	if now.Before(l.until) {
		l.missed++
		l.mutex.Unlock()
		return
	}
	missed := l.missed
	l.until, l.missed = now.Add(quiet), 0
	l.mutex.Unlock()
	var attrs []slog.Attr
	for i := 0; i+1 < len(where); i += 2 {
		attrs = append(attrs, slog.String(where[i], bounded(where[i+1])))
	}
	attrs = append(attrs, slog.String("error", bounded(err.Error())), slog.Int("more_before", missed))
	logger.LogAttrs(ctx, slog.LevelError, message, attrs...)
}

// bounded returns the text, or its beginning and its length.
func bounded(text string) string {
	if len(text) <= maxText {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:maxText], ""), len(text))
}
