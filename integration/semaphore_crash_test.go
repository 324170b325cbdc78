package integration

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/semaphore"
)

const crashPlaces, crashTTL = 8, 600 * time.Millisecond

// crashJudge notes, at each write behind the row's lock, how many places are held, and has the spans of
// the clock in which somebody certainly worked.
const crashJudge = `
	create table public.over (held bigint, at_ns bigint);
	create table public.work (token bigint, from_ns bigint, to_ns bigint);
	create function public.judge() returns trigger language plpgsql as $$
	declare
		live bigint;
	begin
		select sum(weight) into live from unnest(new.weights, new.until_ns) h (weight, until_ns) where until_ns > pglimit.clock_ns();
		if live > 8 or new.held <> (select coalesce(sum(weight), 0) from unnest(new.weights) weight) then
			insert into public.over values (live, pglimit.clock_ns());
		end if;
		return null;
	end $$;
	create trigger judge after insert or update on pglimit.permits for each row execute function public.judge()`

// 64 callers in four processes share eight places, and processes are killed while they hold some: never more than eight
// are held, by the row and by who works, and all eight are there in the end. (PGLIMIT_TEST_KILLS: so many instead of
// 12.)
func TestNeverMoreThanThePlacesWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	kills := 12
	if text := os.Getenv("PGLIMIT_TEST_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		must(t, err)
		kills = n
	}
	pool := newMigrated(t)
	execute(t, pool, crashJudge)
	var children []*exec.Cmd
	start := func() *exec.Cmd {
		cmd, out := child(t, "TestSemaphoreChild", databaseURL(pool))
		go io.Copy(io.Discard, out) //nolint:errcheck // what it says is of no interest
		return cmd
	}
	for range 4 {
		children = append(children, start())
	}
	done := int64(0)
	for range kills {
		passes(t, pool, 100*time.Millisecond+rand.N(200*time.Millisecond))
		before := done
		until(t, "work since the last kill", func() bool {
			done = query[int64](t, pool, "select count(*) from public.work")
			return done > before
		})
		i := rand.N(len(children))
		must(t, children[i].Process.Kill())
		_ = children[i].Wait()
		children[i] = start()
	}
	for _, c := range children {
		must(t, c.Process.Kill())
		_ = c.Wait()
	}
	s := newSemaphore(t, pool, semaphore.Config{Places: crashPlaces, MaxWait: crashTTL + 30*time.Second})
	for i := range crashPlaces {
		p, err := s.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatalf("place %d of %d is lost: %v", i+1, crashPlaces, err)
		}
		defer p.Release(context.Background()) //nolint:errcheck // the test is over
	}
	full(t, s, "k")
	if over := texts(t, pool, "select held || ' at ' || at_ns from public.over"); len(over) > 0 {
		t.Errorf("more than %d held: %v", crashPlaces, over)
	}
	most, spans := mostAtOnce(t, pool)
	t.Logf("%d kills, %d pieces of work, at most %d at once", kills, spans, most)
	if most > crashPlaces || spans < kills {
		t.Errorf("%d pieces of work, %d at once", spans, most)
	}
}

// mostAtOnce reads the spans of work.
func mostAtOnce(t *testing.T, pool *pgxpool.Pool) (most, spans int) {
	t.Helper()
	var from, to []int64
	must(t, pool.QueryRow(t.Context(), "select array_agg(from_ns order by from_ns), array_agg(to_ns order by to_ns) from public.work").Scan(&from, &to))
	for i, at := range from { // those that have begun, less those that have ended
		ended, _ := slices.BinarySearch(to, at)
		most = max(most, i+1-ended)
	}
	return most, len(from)
}

// TestSemaphoreChild is not a test but the other process of the one above: 16 callers who work.
func TestSemaphoreChild(t *testing.T) {
	if task() == "" {
		t.Skip("runs as a child of other tests")
	}
	pool := newPool(t, task(), 6)
	s, err := semaphore.New(pool, semaphore.Config{Name: "test", Places: crashPlaces, TTL: crashTTL, Poll: 20 * time.Millisecond})
	must(t, err)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent is gone
		os.Exit(1)
	}()
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for {
				_ = work(t.Context(), s, pool) // it fails if the machine is slow
			}
		})
	}
	callers.Wait()
}

// work with a permit, and note when it was certainly held.
func work(ctx context.Context, s *semaphore.Semaphore, pool *pgxpool.Pool) error {
	p, err := s.Acquire(ctx, "k")
	if err != nil {
		return err
	}
	var from, to int64
	err = pool.QueryRow(p.Context(), "select pglimit.clock_ns()").Scan(&from)
	if err == nil {
		<-time.After(rand.N(10 * time.Millisecond)) // the work
		err = pool.QueryRow(p.Context(), "select pglimit.clock_ns()").Scan(&to)
	}
	if err == nil && p.Err() == nil {
		_, err = pool.Exec(ctx, "insert into public.work values ($1, $2, $3)", p.Token, from, to)
	}
	return errors.Join(err, p.Release(ctx))
}
