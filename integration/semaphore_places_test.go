package integration

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
)

// Nobody loses a permit when the number is lowered, and nobody gets one until fewer are held; when it is raised, the
// next call gets one.
func TestPlacesOfTheTableAreLoweredAndRaised(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true})
	setPlaces(t, pool, 4)
	var held []*semaphore.Permit
	for range 4 {
		held = append(held, acquire(t, s, "k"))
	}
	full(t, s, "k")
	setPlaces(t, pool, 2)
	for i, p := range held[:3] {
		full(t, s, "k")
		if p.Err() != nil {
			t.Errorf("permit %d: %v", i, p.Err())
		}
		must(t, p.Release(t.Context()))
	}
	acquire(t, s, "k")
	full(t, s, "k")
	waiting := make(chan error)
	go func() {
		p, err := s.Acquire(t.Context(), "k")
		if err == nil {
			err = p.Release(t.Context())
		}
		waiting <- err
	}()
	until(t, "the callers wait", func() bool { return s.Stats().Waiting == 1 })
	setPlaces(t, pool, 3)
	must(t, <-waiting)
	acquire(t, s, "k")
	full(t, s, "k")
	_, err := limits.New(pool).Disable(t.Context(), limits.Rule{Limiter: "test", Action: pglimit.ActionPlaces, Note: "test"})
	must(t, err)
	if _, _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotSet) {
		t.Errorf("%v, want ErrNotSet", err)
	}
}

// A call that waits for another one, during which the number is lowered, goes by the new number. The clock stands
// still: where it has moved by 10 ms meanwhile, the call begins again anyhow.
func TestPlacesAreReadBehindTheLock(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true})
	for key, ask := range map[string]func(key string){
		"in Go": func(key string) { full(t, s, key) },
		"in SQL, without a holder": func(key string) {
			if query[bool](t, pool, "select acquired from pglimit.acquire('test', $1)", key) {
				t.Errorf("%s: there was no place", key)
			}
		},
	} {
		setPlaces(t, pool, 3)
		acquire(t, s, key)
		tx := begin(t, pool)
		if !query[bool](t, tx, "select acquired from pglimit.acquire('test', $1)", key) {
			t.Fatal("there was a place")
		}
		whileBlocked(t, pool, func() { ask(key) }, func() {
			setPlaces(t, pool, 2)
			must(t, tx.Commit(t.Context()))
		})
		if held := query[int64](t, pool, "select held from pglimit.permits where key = $1", key); held != 2 {
			t.Errorf("%s: %d places are held", key, held)
		}
	}
}

// 64 callers on two pools, while the number changes. The database writes down how many places were held after each
// grant, behind the lock of the key: that is never more than the largest number that was in force during the call.
//
// Whatever the isolation of the pools' transactions is by default.
func TestNeverMoreThanThePlacesOfTheTable(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			neverMoreThanThePlacesOfTheTable(t, isolation)
		})
	}
}

func neverMoreThanThePlacesOfTheTable(t *testing.T, isolation string) {
	pool := newMigrated(t)
	execute(t, pool, "alter database "+databaseOf(pool)+" set default_transaction_isolation = '"+isolation+"'")
	pool.Reset()
	execute(t, pool, `create table public.grants (id bigint generated always as identity, token bigint, held bigint);
		create function public.granted() returns trigger language plpgsql as $$
		begin
			insert into public.grants (token, held) values (new.last_token, new.held);
			return null;
		end $$;
		create trigger granted after update on pglimit.permits for each row when (new.last_token > old.last_token) execute function public.granted()`)
	type call struct{ began, ended time.Duration }
	type change struct {
		places       int64
		began, ended time.Duration // between these it was committed
	}
	var mu sync.Mutex
	calls, start, heavy := map[int64]call{}, time.Now(), int64(1)
	setPlaces(t, pool, 8)
	changes := []change{{8, 0, 0}}
	var callers sync.WaitGroup
	var stop atomic.Bool
	defer callers.Wait()
	defer stop.Store(true)
	for _, pool := range []*pgxpool.Pool{pool, newPool(t, databaseURL(pool), 16)} {
		for range 4 {
			s := newSemaphore(t, pool, semaphore.Config{FromTable: true, Poll: 5 * time.Millisecond})
			for range 8 {
				weight := heavy
				heavy = heavy%3 + 1
				callers.Go(func() {
					for !stop.Load() {
						began := time.Since(start)
						p, ok, err := s.TryAcquireN(t.Context(), "k", weight)
						if err != nil && (weight == 1 || !strings.Contains(err.Error(), "weight")) {
							t.Error(err)
							return
						}
						if !ok {
							<-time.After(time.Millisecond)
							continue
						}
						mu.Lock()
						calls[p.Token] = call{began, time.Since(start)}
						mu.Unlock()
						<-time.After(rand.N(10 * time.Millisecond)) // the work
						if err := p.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
	}
	admin := newPool(t, databaseURL(pool), 1)
	used := func(places int64) { // until many calls went by the number, and all of them were held
		t.Helper()
		last := query[int64](t, admin, "select coalesce(max(id), 0) from public.grants")
		until(t, "all places are held", func() bool {
			return t.Failed() || query[bool](t, admin, "select count(*) >= 25 and bool_or(held = $2) from public.grants where id > $1", last, places)
		})
	}
	used(8)
	for _, n := range []int64{3, 8, 1, 2} {
		began := time.Since(start)
		setPlaces(t, admin, n)
		changes = append(changes, change{n, began, time.Since(start)})
		used(n)
	}
	stop.Store(true)
	callers.Wait()

	rows, err := pool.Query(t.Context(), "select token, held from public.grants")
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var token, held int64
		must(t, rows.Scan(&token, &held))
		c, most := calls[token], int64(0)
		for i, now := range changes {
			if now.began <= c.ended && (i == len(changes)-1 || changes[i+1].ended >= c.began) {
				most = max(most, now.places)
			}
		}
		if held > most {
			t.Errorf("%d places are held, of %d at most, after a call from %v to %v: %+v", held, most, c.began, c.ended, changes)
		}
	}
	must(t, rows.Err())
}

// Who wants more places than the table has is told so, also if the table had them when he began to wait, and holds up
// nobody.
func TestMoreThanThePlacesOfTheTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	setPlaces(t, pool, 3)
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true, Poll: 10 * time.Millisecond})
	says := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), `weight 4: by pglimit.limits, semaphore "test" has 3 places for key "k"`) || !errors.Is(err, rate.ErrNothingTaken) {
			t.Errorf("4 of 3 places: %v", err)
		}
	}
	_, _, err := s.TryAcquireN(t.Context(), "k", 4)
	says(err)
	_, err = s.TryAcquireIf(t.Context(), "k", 4, nil)
	says(err)
	_, err = s.AcquireN(t.Context(), "k", 4)
	says(err)
	p, err := s.Acquire(t.Context(), "k")
	must(t, err)
	errs := make(chan error)
	go func() {
		_, err := s.AcquireN(t.Context(), "k", 3)
		errs <- err
	}()
	until(t, "somebody waits", func() bool { return s.Stats().Waiting == 1 })
	setPlaces(t, pool, 2)
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "weight 3") {
		t.Errorf("3 of 2 places: %v", err)
	}
	must(t, p.Release(t.Context()))
}
