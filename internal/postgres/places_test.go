package postgres

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A server has room for two connections. Of many callers that it does not have room for, each waits for one
// of the two. Attempts to get more are few. When it has more room, all of it is used.
func TestPlacesAreAsManyAsThereIsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p places
		var mu sync.Mutex
		var open, refused, served, most int
		room := 2
		dial := func() bool {
			mu.Lock()
			defer mu.Unlock()
			if open == room {
				refused++
				return false
			}
			open++
			most = max(most, open)
			return true
		}
		end := time.Now().Add(10 * time.Second)
		var work sync.WaitGroup
		for range 32 {
			work.Go(func() {
				for time.Now().Before(end) {
					if err := p.enter(t.Context()); err != nil {
						t.Error(err)
					}
					for !dial() {
						mu.Lock()
						works := open > 0
						mu.Unlock()
						if waited, err := p.wait(t.Context(), works); !waited {
							t.Errorf("refused, though it works: %v", err)
							return
						}
					}
					time.Sleep(time.Millisecond)
					mu.Lock()
					open--
					served++
					mu.Unlock()
					p.leave(true)
				}
			})
		}
		later := time.Now().Add(5 * time.Second)
		time.Sleep(time.Until(later))
		mu.Lock()
		if refused > 30+5*5+5 || served < 2*4900 {
			t.Errorf("%d served, %d refused", served, refused)
		}
		room = 10
		mu.Unlock()
		work.Wait()
		if most != 10 {
			t.Errorf("%d of 10 were used", most)
		}
	})
}

func TestWhoWaitsForAPlaceMayLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p places
		p.startSlowly()
		if err := p.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := p.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		p.leave(false)
		if err := p.enter(t.Context()); err != nil || p.taken != 1 || p.queue.Len() > 0 {
			t.Errorf("%v: %+v", err, p.taken)
		}
	})
}

// One call begins, then two, then four. A call that waits for a row does not keep the others for long.
func TestASlowStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p places
		p.startSlowly()
		began := time.Now()
		var mu sync.Mutex
		var under, most, served int
		var work sync.WaitGroup
		for i := range 100 {
			work.Go(func() {
				_ = p.enter(t.Context())
				mu.Lock()
				under++
				if soon := time.Since(began) < 40*time.Millisecond; soon {
					most = max(most, under)
				}
				mu.Unlock()
				if i == 0 {
					time.Sleep(time.Minute)
				} else {
					time.Sleep(10 * time.Millisecond)
				}
				mu.Lock()
				under--
				served++
				mu.Unlock()
				p.leave(true)
			})
			synctest.Wait() // the first one comes first
		}
		time.Sleep(2 * time.Second)
		if mu.Lock(); served != 99 {
			t.Errorf("%d of 99 were served", served)
		}
		mu.Unlock()
		if work.Wait(); most > 16 {
			t.Errorf("%d at once, soon after it began", most)
		}
		if p.slow != 0 || p.taken != 0 {
			t.Errorf("slow %d, taken %d", p.slow, p.taken)
		}
	})
}
