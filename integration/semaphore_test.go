package integration

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/semaphore"
)

func newSemaphore[D semaphore.DB](t *testing.T, db D, config semaphore.Config) *semaphore.Semaphore {
	t.Helper()
	config.Name = "test"
	config.Timeout = cmp.Or(config.Timeout, config.TTL, 30*time.Second) // a machine that tests may be busier than any server
	s, err := semaphore.New(db, config)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close(context.Background())) })
	return s
}

// acquire a permit, for which there must be a place.
func acquire(t *testing.T, s *semaphore.Semaphore, key string) *semaphore.Permit {
	t.Helper()
	p, ok, err := s.TryAcquire(t.Context(), key)
	if err != nil || !ok {
		t.Fatalf("no permit: %v", err)
	}
	t.Cleanup(func() { _ = p.Release(context.Background()) })
	return p
}

// full says that there is no place.
func full(t *testing.T, s *semaphore.Semaphore, key string) {
	t.Helper()
	p, ok, err := s.TryAcquire(t.Context(), key)
	if err != nil || ok {
		t.Errorf("a permit where there is no place: %+v, %v", p, err)
	}
}

// Of every way to Postgres: places are taken and come back, in two Semaphores together.
func TestPermitsAreAsManyAsThereArePlaces(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	config := semaphore.Config{Places: 3, Holder: "here"}
	pgx := newSemaphore(t, pool, config)
	others := map[string]*semaphore.Semaphore{"pgx": newSemaphore(t, pool, config)}
	for _, driver := range sqlDrivers {
		others["database/sql, "+driver.name] = newSemaphore(t, openSQL(t, driver.open, databaseURL(pool), 4), config)
	}
	for driver, other := range others {
		t.Run(driver, func(t *testing.T) {
			first, second := acquire(t, pgx, "k"), acquire(t, other, "k")
			third := acquire(t, other, "k")
			full(t, pgx, "k")
			full(t, other, "k")
			acquire(t, other, "another "+driver)
			if first.Token >= second.Token || second.Token >= third.Token {
				t.Errorf("tokens %d, %d, %d do not grow", first.Token, second.Token, third.Token)
			}
			holders, err := other.Peek(t.Context(), "k")
			must(t, err)
			if len(holders) != 3 || holders[0].Token != first.Token || holders[2].Token != third.Token || holders[1].Weight != 1 ||
				holders[0].Name[:5] != "here/" || time.Since(holders[0].Since).Abs() > time.Minute || holders[0].Expires.Sub(holders[0].Since) != 30*time.Second {
				t.Errorf("held by %+v", holders)
			}
			must(t, second.Release(t.Context()))
			if left, err := pgx.Peek(t.Context(), "k"); err != nil || !slices.Equal(left, []semaphore.Holder{holders[0], holders[2]}) {
				t.Errorf("of %+v are left %+v, %v", holders, left, err)
			}
			for _, p := range []*semaphore.Permit{first, third} {
				must(t, acquire(t, pgx, "k").Release(t.Context()))
				must(t, p.Release(t.Context()))
			}
			if holders, err := pgx.Peek(t.Context(), "k"); err != nil || len(holders) != 0 {
				t.Errorf("still held by %+v, %v", holders, err)
			}
		})
	}
}

func TestPermitsOfMoreThanOnePlace(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 10})
	p, err := s.AcquireN(t.Context(), "k", 7)
	must(t, err)
	if _, ok, err := s.TryAcquireN(t.Context(), "k", 4); ok || err != nil {
		t.Errorf("4 of 3 places: %v", err)
	}
	q, ok, err := s.TryAcquireN(t.Context(), "k", 3)
	if !ok || err != nil {
		t.Fatalf("3 of 3 places: %v", err)
	}
	full(t, s, "k")
	must(t, p.Release(t.Context()))
	must(t, q.Release(t.Context()))
	p, ok, err = s.TryAcquireN(t.Context(), "k", 10)
	if !ok || err != nil {
		t.Fatalf("10 of 10 places: %v", err)
	}
	must(t, p.Release(t.Context()))
	if held := query[int64](t, pool, "select held from pglimit.permits"); held != 0 { // else each call would first set it right
		t.Errorf("%d places are held", held)
	}
	for _, weight := range []int64{0, -1, 11} {
		if _, err := s.AcquireN(t.Context(), "k", weight); err == nil {
			t.Errorf("a permit of weight %d", weight)
		}
	}
}

// All holders of a key are in one row: there are at most a thousand.
func TestAThousandPermits(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 5000})
	execute(t, pool, `insert into pglimit.permits
		select 'k', 'test', n.now, 1000, n.now, n.now, array_agg(i::text), array_agg(n.now), array_agg(1), array_agg(n.now), array_agg(n.now + case i when 7 then 1 else 3600000000000 end)
		from generate_series(1, 1000) i, (select pglimit.clock_ns() as now offset 0) n group by n.now`)
	p := acquire(t, s, "k") // the place of the one that has expired
	full(t, s, "k")
	must(t, p.Release(t.Context()))
	acquire(t, s, "k")
}

// A refusal locks nothing and writes nothing, and waits for nobody who holds the row.
func TestARefusedPermitWritesNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	acquire(t, s, "k")
	tx := begin(t, pool)
	execute(t, tx, "select from pglimit.permits for update")
	row := "select xmin::text || ctid::text from pglimit.permits"
	before := query[string](t, pool, row)
	full(t, s, "k")
	if after := query[string](t, pool, row); after != before {
		t.Errorf("the row was %s, and is %s", before, after)
	}
}

func TestAPermitIsReleasedOnce(t *testing.T) {
	t.Parallel()
	s := newSemaphore(t, newMigrated(t), semaphore.Config{Places: 1})
	p := acquire(t, s, "k")
	if err := p.Err(); err != nil || p.Context().Err() != nil {
		t.Fatalf("%v, %v", err, p.Context().Err())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, p.Release(ended)) // a caller who has hung up releases too
	if err := p.Err(); !errors.Is(err, semaphore.ErrReleased) || !errors.Is(context.Cause(p.Context()), semaphore.ErrReleased) {
		t.Errorf("%v, %v", err, context.Cause(p.Context()))
	}
	q := acquire(t, s, "k")
	must(t, p.Release(t.Context()))
	full(t, s, "k") // the second release took nothing from q
	must(t, q.Release(t.Context()))
	if got := s.Stats(); got != (semaphore.Stats{Acquired: 2, Refused: 1}) {
		t.Errorf("%+v", got)
	}
}

// A permit is renewed for as long as it is held, and only then.
func TestAPermitIsHeldForLongerThanItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 1, TTL: ttl, Timeout: 4 * time.Second})
	p, ok, err := s.TryAcquire(t.Context(), "k")
	ends := func() int64 { return query[int64](t, pool, "select coalesce(until_ns[1], 0) from pglimit.permits") }
	lost := func() bool { return errors.Is(err, context.DeadlineExceeded) || errors.Is(p.Err(), semaphore.ErrLost) }
	for range 2 {
		if lost() {
			t.Skipf("the machine was slow: %v", err)
		}
		first := ends()
		until(t, "it happens", func() bool { return ends() > first || lost() })
	}
	if !ok || !lost() && p.Err() != nil {
		t.Fatalf("%t, %v", ok, err)
	}
	if lasts := query[int64](t, pool, "select coalesce(until_ns[1] - at_ns, 0) from pglimit.permits"); lasts != ttl.Nanoseconds() && !lost() {
		t.Errorf("it was renewed for %v", time.Duration(lasts))
	}
	full(t, s, "k")
	if err := p.Release(t.Context()); err == nil && ends() != 0 {
		t.Error("it is still held")
	}
}

// A holder whose process has gone keeps its place for the rest of its TTL.
func TestAPlaceComesBackAfterACrash(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const ttl = 2 * time.Second
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	execute(t, pool, `select * from pglimit.acquire('test', 'hour', 1, ttl => '1 hour')`)
	asks, err := os.ReadFile("../semaphore/sql/acquire.sql")
	must(t, err)
	var acquired bool
	var token, micros int64
	must(t, pool.QueryRow(t.Context(), string(asks), "test", "hour", 1, 1, 1000000, "other", nil).Scan(&acquired, &token, &micros))
	if left := time.Duration(micros) * time.Microsecond; acquired || left > time.Hour || left < 50*time.Minute { // else a waiter asks too often, or too late
		t.Errorf("the place comes back in %v", left)
	}
	began := time.Now()
	execute(t, pool, `select * from pglimit.acquire('test', 'k', 1, ttl => '2 s')`)
	p, early, err := s.TryAcquire(t.Context(), "k")
	must(t, err)
	if !early {
		p, err = s.Acquire(t.Context(), "k")
	}
	must(t, err)
	if waited := time.Since(began); waited < ttl || waited > time.Minute {
		t.Errorf("waited for %v", waited)
	}
	must(t, p.Release(t.Context()))
}

// Whoever waits gets a place in turn, and whoever gives up leaves nothing behind.
func TestCallersWaitInLine(t *testing.T) {
	t.Parallel()
	s := newSemaphore(t, newMigrated(t), semaphore.Config{Places: 1})
	held := acquire(t, s, "k")
	var mu sync.Mutex
	var order []int
	var callers sync.WaitGroup
	var leave []context.CancelFunc
	for i := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leaves := i == 0 || i == 2
		if leaves {
			leave = append(leave, cancel)
		}
		callers.Go(func() {
			p, err := s.Acquire(ctx, "k")
			if leaves {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			if err := p.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		until(t, "it happens", func() bool { return s.Stats().Waiting == int64(i+1) })
	}
	for _, cancel := range leave {
		cancel()
	}
	until(t, "it happens", func() bool { return s.Stats().Waiting == 4 })
	full(t, s, "k")
	must(t, held.Release(t.Context()))
	callers.Wait()
	if want := []int{1, 3, 4, 5}; !slices.Equal(order, want) {
		t.Errorf("served in the order %v, want %v", order, want)
	}
	if holders, err := s.Peek(t.Context(), "k"); err != nil || len(holders) > 0 {
		t.Errorf("%+v, %v", holders, err)
	}
}

// Callers who leave while Postgres answers release what they are given.
func TestAPlaceGivenToACallerWhoHasLeftComesBack(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	must(t, acquire(t, s, "k").Release(t.Context()))
	tx := begin(t, pool)
	execute(t, tx, "select from pglimit.permits for update")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	whileBlocked(t, pool, func() {
		if _, err := s.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}, cancel)
	must(t, tx.Rollback(t.Context()))
	must(t, s.Close(t.Context())) // when the call has ended
	acquire(t, newSemaphore(t, pool, semaphore.Config{Places: 1}), "k")
	if got := s.Stats(); got.Acquired != 2 || got.Held != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWaitingForAPlaceEnds(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := newSemaphore(t, pool, semaphore.Config{Places: 1, MaxWait: 20 * time.Millisecond})
	acquire(t, s, "k")
	if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	if _, err := s.Acquire(t.Context(), ""); err == nil {
		t.Error("a permit of no key")
	}
	patient := newSemaphore(t, pool, semaphore.Config{Places: 1})
	closed := make(chan error)
	go func() {
		_, err := patient.Acquire(t.Context(), "k")
		closed <- err
	}()
	until(t, "it happens", func() bool { return patient.Stats().Waiting == 1 })
	must(t, patient.Close(t.Context()))
	if err := <-closed; !errors.Is(err, semaphore.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if _, _, err := patient.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}
