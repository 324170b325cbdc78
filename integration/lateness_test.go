package integration

import (
	"sync"
	"testing"
	"time"
)

// lateness is when this process was not run though it was due, as somebody who sleeps and does nothing else finds it. What a
// test measures meanwhile says as much of the machine as of what it measures.
type lateness struct {
	mu    sync.Mutex
	lates []late
}

// late is when something was due, and by how much later it came.
type late struct {
	due time.Time
	by  time.Duration
}

// watchLateness until the test has ended.
func watchLateness(t *testing.T) *lateness {
	t.Helper()
	const pace = 2 * time.Millisecond
	l := &lateness{}
	var work sync.WaitGroup
	work.Go(func() {
		for t.Context().Err() == nil {
			due := time.Now().Add(pace)
			<-time.After(pace)
			if by := time.Since(due); by > pace {
				l.mu.Lock()
				l.lates = append(l.lates, late{due, by})
				l.mu.Unlock()
			}
		}
	})
	t.Cleanup(work.Wait)
	return l
}

// worst is for how long at most it was not run, since then.
func (l *lateness) worst(since time.Time) (worst time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.lates {
		if one.due.Add(one.by).After(since) {
			worst = max(worst, one.by)
		}
	}
	return worst
}
