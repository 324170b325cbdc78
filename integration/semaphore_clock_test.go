package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// clockedPermits is a key in a database whose clock stands where the test sets it.
type clockedPermits struct {
	*testing.T
	pool *pgxpool.Pool // of one connection: the clock is the connection's
	key  string
}

// at sets the clock.
func (b clockedPermits) at(since time.Duration) {
	b.Helper()
	clockIs(b.T, b.pool, time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).Add(since).UnixNano())
}

// acquires a permit, or not.
func (b clockedPermits) acquire(holder string, want bool) (token int64) {
	b.Helper()
	var acquired bool
	must(b.T, b.pool.QueryRow(b.Context(), "select acquired, coalesce(token, 0) from pglimit.acquire('test', $1, 2, holder => $2)", b.key, holder).Scan(&acquired, &token))
	if acquired != want {
		b.Errorf("%s: acquired %t", holder, acquired)
	}
	return token
}

// says what a verb returns.
func (b clockedPermits) says(want bool, verb, holder string) {
	b.Helper()
	if got := query[bool](b.T, b.pool, "select pglimit."+verb+"('test', $1, $2)", b.key, holder); got != want {
		b.Errorf("%s %s: %t", verb, holder, got)
	}
}

// frees says when the first permit expires, asked by somebody who is refused.
func (b clockedPermits) frees(after time.Duration) {
	b.Helper()
	if got := query[time.Duration](b.T, b.pool, "select retry_after from pglimit.acquire('test', $1, 2, holder => 'any')", b.key); got != after {
		b.Errorf("a place is free after %v, want %v", got, after)
	}
}

// lists says who holds the key, and for how many seconds from now.
func (b clockedPermits) lists(want string) {
	b.Helper()
	if got := query[string](b.T, b.pool, `select coalesce(string_agg(holder || ' ' || round((pglimit.ns_of(expires_at) - pglimit.clock_ns()) / 1e9, 1), ', ' order by token), '')
		from pglimit.holders where key = $1`, b.key); got != want {
		b.Errorf("held by %q, want %q", got, want)
	}
}

func (b clockedPermits) grew(token, from int64) {
	b.Helper()
	if token <= from {
		b.Errorf("token %d after %d", token, from)
	}
}

func TestPermitsOnASetClock(t *testing.T) {
	t.Parallel()
	migrated := newMigrated(t)
	execute(t, migrated, replayClock)
	pool := newPool(t, databaseURL(migrated), 1)
	const µs = time.Microsecond
	for name, run := range map[string]func(b clockedPermits){
		"a place is given away when its permit has expired, and not before": func(b clockedPermits) {
			b.acquire("a", true)
			b.at(time.Second)
			first := b.acquire("b", true)
			b.at(30*time.Second - µs)
			b.acquire("c", false)
			b.frees(µs)
			b.says(true, "renew", "b")
			b.lists("a 0.0, b 30.0")
			b.at(30 * time.Second)
			b.lists("b 30.0")
			b.says(false, "renew", "a") // also if nobody has its place yet
			b.grew(b.acquire("c", true), first)
			b.says(false, "release", "a")
			b.frees(30*time.Second - µs)
		},
		"only what has expired is taken out": func(b clockedPermits) {
			b.acquire("a", true)
			b.at(µs)
			b.acquire("b", true)
			b.at(30 * time.Second)
			b.acquire("c", true)
			b.acquire("d", false)
			b.frees(µs)
		},
		"a holder who asks again": func(b clockedPermits) {
			token := b.acquire("a", true)
			b.at(20 * time.Second)
			if again := b.acquire("a", true); again != token {
				b.Errorf("token %d, then %d", token, again)
			}
			b.acquire("b", true)
			b.frees(30 * time.Second)
		},
		"a renewal makes nothing shorter": func(b clockedPermits) {
			b.acquire("a", true)
			b.acquire("b", true)
			b.at(-5 * time.Millisecond)
			b.says(true, "renew", "a")
			b.frees(30*time.Second + 5*time.Millisecond)
		},
		"the clock steps back": func(b clockedPermits) {
			b.at(time.Hour)
			b.acquire("a", true)
			b.at(time.Hour + 10*time.Second)
			last := b.acquire("b", true)
			b.at(0) // a has 20 s left, b 30
			b.lists("a 20.0, b 30.0")
			b.acquire("c", false)
			b.frees(20 * time.Second)
			b.at(5 * time.Second)
			b.frees(15 * time.Second)
			b.says(true, "renew", "b")
			b.at(20 * time.Second)
			b.says(false, "renew", "a")
			b.grew(b.acquire("c", true), last)
			b.says(true, "release", "b")
			b.says(true, "release", "c")
		},
		"the clock steps back, and a holder is the first to see it": func(b clockedPermits) {
			b.at(time.Hour)
			b.acquire("a", true)
			b.acquire("b", true)
			b.at(0)
			b.says(true, "renew", "a")
			b.at(30*time.Second - µs)
			b.acquire("c", false)
			b.at(30 * time.Second)
			b.acquire("c", true)
		},
		"the clock steps back behind a renewal": func(b clockedPermits) {
			b.acquire("a", true)
			b.acquire("b", true)
			b.at(20 * time.Second)
			b.says(true, "renew", "a")
			b.says(true, "renew", "b")
			b.at(10 * time.Second)
			b.frees(30 * time.Second)
		},
		"the clock steps back, and a place is free": func(b clockedPermits) {
			b.at(time.Hour)
			last := b.acquire("a", true)
			b.at(0)
			b.grew(b.acquire("b", true), last)
			b.acquire("c", false)
			b.says(true, "release", "a")
			b.acquire("c", true)
			b.frees(30 * time.Second)
		},
		"a step back is written once": func(b clockedPermits) {
			b.at(time.Hour)
			b.acquire("a", true)
			b.acquire("b", true)
			row := func() string {
				return query[string](b.T, b.pool, "select ctid::text || at_ns from pglimit.permits where key = $1", b.key)
			}
			was := row()
			b.at(0)
			b.acquire("c", false)
			stepped := row()
			b.acquire("c", false)
			if now := row(); was == stepped || now != stepped {
				b.Errorf("the row was %s, after the step %s, then %s", was, stepped, now)
			}
		},
		"the clock steps forward": func(b clockedPermits) {
			b.acquire("a", true)
			last := b.acquire("b", true)
			b.at(time.Minute)
			b.grew(b.acquire("c", true), last)
			b.says(false, "renew", "a")
			b.says(false, "release", "b")
			b.acquire("d", true)
			b.acquire("e", false)
		},
		"a row of a long permit is not swept": func(b clockedPermits) {
			for name, long := range map[string]string{
				"renewed":  "select pglimit.renew('test', $1, 'a', '2 hours')",
				"acquired": "select acquired from pglimit.acquire('test', $1, 2, ttl => '2 hours', holder => 'b')",
			} {
				b.at(0)
				b.key = name
				b.acquire("a", true)
				if !query[bool](b.T, b.pool, long, b.key) {
					b.Error(long)
				}
				b.at(90 * time.Minute)
				_, err := strategies.TokenBucket{}.Sweep(b.Context(), on(b.pool), 0, 1000)
				must(b.T, err)
				b.lists(map[string]string{"renewed": "a 1800.0", "acquired": "b 1800.0"}[name])
			}
		},
		"a swept row": func(b clockedPermits) {
			last := b.acquire("a", true)
			b.says(true, "release", "a")
			sweep := func(left bool) {
				_, err := strategies.TokenBucket{}.Sweep(b.Context(), on(b.pool), 0, 1000)
				must(b.T, err)
				if got := query[bool](b.T, b.pool, "select exists (select from pglimit.permits where key = $1)", b.key); got != left {
					b.Errorf("the row is there: %t", got)
				}
			}
			b.at(time.Hour + 90*time.Second - µs)
			sweep(true)
			b.at(time.Hour + 90*time.Second)
			sweep(false)
			b.grew(b.acquire("b", true), last)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := clockedPermits{t, pool, name}
			b.at(0)
			run(b)
		})
	}
}

// A call waits for a key, the clock steps back meanwhile, and the call that it waits for has corrected the key's times.
// What the call has read of the clock before it waited must not count.
func TestTheClockStepsBackWhileACallWaitsForAKey(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string]struct {
		before, call, after string
		back                time.Duration
	}{
		"acquire": {
			"", "select acquired from pglimit.acquire('test', 'k', 3, holder => 'a')", "a, b, x", time.Hour,
		},
		"renew": {
			"", "select pglimit.renew('test', 'k', 'x')", "b, x", 10 * time.Second, // less than the TTL
		},
		"acquire the place of an expired permit": {
			`select pglimit.acquire('test', 'k', 3, holder => 'old', ttl => '100 ms');
			select pglimit.acquire('test', 'k', 3, holder => 'older', ttl => '100 ms');
			update public.clock set offset_ns = offset_ns + 1000000000;
			select pglimit.renew('test', 'k', 'x')`,
			"select acquired from pglimit.acquire('test', 'k', 3, holder => 'a')", "a, b, x", time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, steppingClock)
			execute(t, pool, "select pglimit.acquire('test', 'k', 3, holder => 'x')")
			execute(t, pool, calls.before)
			tx := begin(t, pool)
			execute(t, tx, "select from pglimit.permits for update")
			whileBlocked(t, pool, func() {
				var ok bool
				if err := pool.QueryRow(t.Context(), calls.call).Scan(&ok); err != nil || !ok {
					t.Errorf("%t, %v", ok, err)
				}
			}, func() {
				step(t, pool, -calls.back)
				if !query[bool](t, tx, "select acquired from pglimit.acquire('test', 'k', 3, holder => 'b')") {
					t.Error("there was a place")
				}
				must(t, tx.Commit(t.Context()))
			})
			if got := query[string](t, pool, "select string_agg(holder, ', ' order by holder) from pglimit.holders where expires_at <= pglimit.time_of(pglimit.clock_ns()) + interval '30 s'"); got != calls.after {
				t.Errorf("held by %s, want %s", got, calls.after)
			}
			if !query[bool](t, pool, "select at_ns <= pglimit.clock_ns() from pglimit.permits") {
				t.Error("the row is ahead of the clock")
			}
		})
	}
}

// The holder hears of a step forward at the next renewal, and nothing of a step back.
func TestAPermitWhenTheClockSteps(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, steppingClock)
	const ttl = 4 * time.Second // longer than the machine lets a call or a renewal wait
	s := newSemaphore(t, pool, semaphore.Config{Places: 1, TTL: ttl})
	p := acquire(t, s, "k")
	step(t, pool, -time.Hour)
	full(t, s, "k")
	passes(t, pool, ttl)
	_, ok, err := s.TryAcquire(t.Context(), "k")
	if p.Err() != nil || err != nil {
		t.Skipf("the machine was slow: %v, %v", p.Err(), err)
	}
	if ok {
		t.Error("the place was given away")
	}
	step(t, pool, time.Hour)
	select {
	case <-p.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the holder does not hear of it")
	}
	if cause := context.Cause(p.Context()); !errors.Is(cause, semaphore.ErrLost) {
		t.Errorf("the cause is %v", cause)
	}
	q := acquire(t, s, "k")
	for range 2 {
		if err := p.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("released late: %v", err)
		}
	}
	full(t, s, "k")
	must(t, q.Release(t.Context()))
	if got := s.Stats(); got.Lost != 1 || got.Held != 0 {
		t.Errorf("%+v", got)
	}
}

// A holder who cannot renew stops before the place is given away.
func TestAPermitThatCannotBeRenewedIsLost(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const ttl = 5 * time.Second
	s := newSemaphore(t, pool, semaphore.Config{Places: 1, TTL: ttl})
	before := time.Now()
	p := acquire(t, s, "k")
	tx := begin(t, pool)
	execute(t, tx, "select from pglimit.permits for update")
	<-p.Context().Done()
	lasted := time.Since(before)
	expired := query[bool](t, pool, "select pglimit.clock_ns() >= until_ns[1] from pglimit.permits")
	must(t, tx.Rollback(t.Context()))
	switch {
	case !errors.Is(p.Err(), semaphore.ErrLost) || !errors.Is(context.Cause(p.Context()), semaphore.ErrLost):
		t.Errorf("%v, %v", p.Err(), context.Cause(p.Context()))
	case lasted >= ttl:
		t.Skipf("the machine was slow: it took %v", lasted)
	case expired && time.Since(before) < ttl:
		t.Error("the place was free before")
	}
	q, err := s.Acquire(t.Context(), "k")
	must(t, err)
	if p.Token >= q.Token {
		t.Errorf("token %d after %d", q.Token, p.Token)
	}
	must(t, q.Release(t.Context()))
}

// A process is stopped while it holds a permit. Its place is given away, and when it goes on it knows at once.
func TestAFrozenHolderHasLostItsPermit(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	cmd, out := child(t, "TestFrozenHolder", databaseURL(pool))
	lines := bufio.NewScanner(out)
	says := func() (word string, token int64) {
		if !lines.Scan() {
			t.Fatal("the child has ended")
		}
		_, err := fmt.Sscan(lines.Text(), &word, &token)
		must(t, err)
		return word, token
	}
	word, token := says()
	if word != "holds" {
		t.Fatal(word)
	}
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	full(t, s, "k")
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	p, err := s.Acquire(t.Context(), "k")
	must(t, err)
	must(t, cmd.Process.Signal(syscall.SIGCONT))
	if word, _ := says(); word != "lost" {
		t.Errorf("it says %s", word)
	}
	if token >= p.Token {
		t.Errorf("token %d after %d", p.Token, token)
	}
	full(t, s, "k") // what it released was not this
	must(t, p.Release(t.Context()))
}

// TestFrozenHolder is not a test but the other process of the one above.
func TestFrozenHolder(t *testing.T) {
	if task() == "" {
		t.Skip("runs as a child of another test")
	}
	pool, err := pgxpool.New(t.Context(), task())
	must(t, err)
	s, err := semaphore.New(pool, semaphore.Config{Name: "test", Places: 1, TTL: 3 * time.Second, Timeout: 3 * time.Second})
	must(t, err)
	p, err := s.Acquire(t.Context(), "k")
	must(t, err)
	fmt.Println("holds", p.Token)
	for p.Err() == nil {
		<-time.After(time.Millisecond)
	}
	<-p.Context().Done()
	if errors.Is(p.Release(t.Context()), semaphore.ErrLost) && errors.Is(p.Err(), semaphore.ErrLost) {
		fmt.Println("lost", p.Token)
	}
}
