package bench

import (
	"sync"
	"time"
)

// Progress of a run, reported several times a second.
type Progress struct {
	Scenario      string // its name
	Strategy      string
	Number, Of    int // this is the Number-th run Of so many
	Elapsed, Last time.Duration
	Done          bool
}

const progressInterval = 100 * time.Millisecond

// follow reports until the function that it returns is called, and once more then.
func (p Progress) follow(report func(Progress), last time.Duration) (stop func()) {
	if report == nil {
		return func() {}
	}
	p.Last = last
	begin := time.Now()
	send := func(done bool) {
		p.Elapsed, p.Done = min(time.Since(begin), last), done
		report(p)
	}
	var following sync.WaitGroup
	stopped := make(chan struct{})
	following.Go(func() {
		ticker := time.NewTicker(progressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				send(false)
			case <-stopped:
				send(true)
				return
			}
		}
	})
	return func() {
		close(stopped)
		following.Wait()
	}
}
