package group

import "github.com/pglimit/ratelimit/pglimit/rate"

// WaitFor is how many groups wait for the held row, with those that have left.
func (l *Lane) WaitFor(bucket rate.Bucket) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held[bucket])
}
