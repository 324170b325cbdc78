package combine

import "github.com/pglimit/ratelimit/pglimit/rate"

// WaitFor is how many groups wait for the held row.
func (c *Combiner) WaitFor(bucket rate.Bucket) (n int) {
	l := &c.lanes[len(c.lanes)-1]
	l.mu.Lock()
	defer l.mu.Unlock()
	if own := l.held[bucket]; own != nil {
		for w := own.queue.first; w != nil; w = w.next {
			n++
		}
	}
	return n
}
