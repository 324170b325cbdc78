package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

var errDenied = errors.New("denied")

// takes a token of each key, all or nothing, as a condition of a permit.
func takes(limiter *pglimit.Limiter, keys ...string) func(context.Context, rate.Session) error {
	return func(ctx context.Context, tx rate.Session) error {
		requests := make([]pglimit.Request, len(keys))
		for i, key := range keys {
			requests[i] = pglimit.Request{Key: key, Tokens: 1}
		}
		group, err := limiter.On(tx).DoAll(ctx, requests...)
		if err == nil && !group.Allowed {
			return errDenied
		}
		return err
	}
}

// A permit and tokens, all or nothing, of every way to Postgres.
func TestAPermitAndTokensAreAllOrNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: pglimit.PerHour(2)})
	config := semaphore.Config{Places: 1}
	ways := map[string]*semaphore.Semaphore{"pgx": newSemaphore(t, pool, config)}
	for _, driver := range sqlDrivers {
		ways["database/sql, "+driver.name] = newSemaphore(t, openSQL(t, driver.open, databaseURL(pool), 4), config)
	}
	for way, s := range ways {
		t.Run(way, func(t *testing.T) {
			user, all := way+" user", way+" all"
			left := func(after string, tokens int64, held int) {
				t.Helper()
				for _, key := range []string{user, all} {
					if d, err := limiter.Peek(t.Context(), key); err != nil || d.Remaining != tokens {
						t.Errorf("%s: %d tokens of %s are left, want %d: %v", after, d.Remaining, key, tokens, err)
					}
				}
				if holders, err := s.Peek(t.Context(), way); err != nil || len(holders) != held {
					t.Errorf("%s: held by %+v, %v", after, holders, err)
				}
			}
			try := func(take func(context.Context, rate.Session) error) (*semaphore.Permit, error) {
				return s.TryAcquireIf(t.Context(), way, 1, take)
			}
			p, err := try(takes(limiter, user, all))
			must(t, err)
			if p.Err() != nil || p.Token == 0 {
				t.Errorf("%+v", p)
			}
			left("granted", 1, 1)
			_, err = try(func(context.Context, rate.Session) error { t.Error("there is no place"); return nil })
			if !errors.Is(err, semaphore.ErrFull) {
				t.Errorf("no place: %v", err)
			}
			left("no place", 1, 1)
			must(t, p.Release(t.Context()))

			for what, take := range map[string]func(context.Context, rate.Session) error{
				"denied by the condition": func(ctx context.Context, tx rate.Session) error {
					return errors.Join(takes(limiter, user, all)(ctx, tx), errDenied)
				},
				"panics": func(ctx context.Context, tx rate.Session) error {
					must(t, takes(limiter, user, all)(ctx, tx))
					panic(errDenied)
				},
				"passes over an error of Postgres": func(ctx context.Context, tx rate.Session) error {
					must(t, takes(limiter, user, all)(ctx, tx))
					_, _ = tx.Exec(ctx, "select 1 / 0")
					return nil
				},
			} {
				func() {
					defer func() { _ = recover() }()
					if p, err := try(take); err == nil || p != nil {
						t.Errorf("%s: %+v, %v", what, p, err)
					}
				}()
				left(what, 1, 0)
			}
			ctx, cancel := context.WithCancel(t.Context())
			p, err = s.TryAcquireIf(ctx, way, 1, func(ctx context.Context, tx rate.Session) error {
				must(t, takes(limiter, user, all)(ctx, tx))
				cancel()
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the caller has left: %+v, %v", p, err)
			}
			left("the caller has left", 1, 0)

			p, err = try(takes(limiter, user, all))
			must(t, err)
			must(t, p.Release(t.Context()))
			left("the last token", 0, 0)
			if _, err := try(takes(limiter, way+" another", all)); !errors.Is(err, errDenied) {
				t.Errorf("no tokens: %v", err)
			}
			left("no tokens", 0, 0)
			if d, err := limiter.Peek(t.Context(), way+" another"); err != nil || d.Remaining != 2 {
				t.Errorf("%+v, %v", d, err)
			}
			if _, err := s.TryAcquireIf(t.Context(), way, 2, takes(limiter, user)); err == nil {
				t.Error("two of one place")
			}
		})
	}
}

// Who waits in line is not passed, and a closed Semaphore says so.
func TestAConditionDoesNotJumpTheQueue(t *testing.T) {
	t.Parallel()
	s := newSemaphore(t, newMigrated(t), semaphore.Config{Places: 2})
	p := acquire(t, s, "k")
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	waits.Go(func() { _, _ = s.AcquireN(ctx, "k", 2) })
	until(t, "it happens", func() bool { return s.Stats().Waiting == 1 })
	yes := func(context.Context, rate.Session) error { return nil }
	if _, err := s.TryAcquireIf(t.Context(), "k", 1, yes); !errors.Is(err, semaphore.ErrFull) {
		t.Errorf("got %v", err)
	}
	cancel()
	waits.Wait()
	must(t, p.Release(t.Context()))
	must(t, s.Close(t.Context()))
	if _, err := s.TryAcquireIf(t.Context(), "k", 1, yes); !errors.Is(err, semaphore.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if got := s.Stats(); got != (semaphore.Stats{Acquired: 1, Refused: 1}) {
		t.Errorf("%+v", got)
	}
}

// 12 callers, three places, 40 tokens: as many permits as tokens, and never more than three at once. Whatever the
// isolation of the pool's transactions is by default, and behind a PgBouncer in transaction mode.
func TestPermitsAndTokensUnderConcurrency(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"read committed", "repeatable read", "serializable", "PgBouncer"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct := newMigrated(t)
			url := with(databaseURL(direct), "default_transaction_isolation", name)
			if name == "PgBouncer" {
				url = behind(t, newBouncer(t), direct, "exec")
			}
			permitsAndTokens(t, newPool(t, url, 8))
		})
	}
}

func permitsAndTokens(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours.WithBurst(40)})
	s := newSemaphore(t, pool, semaphore.Config{Places: 3, Poll: 5 * time.Millisecond})
	var now, most, permits atomic.Int64
	var callers sync.WaitGroup
	hold := func(p *semaphore.Permit, err error) error {
		if err != nil {
			return err
		}
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		now.Add(-1)
		return p.Release(t.Context())
	}
	for i := range 12 {
		callers.Go(func() {
			for n := 0; ; n++ {
				if i < 3 && n < 5 { // in line
					if err := hold(s.Acquire(t.Context(), "k")); err != nil {
						t.Error(err)
						return
					}
				}
				p, err := s.TryAcquireIf(t.Context(), "k", 1, takes(limiter, "a", "b"))
				switch {
				case errors.Is(err, semaphore.ErrFull):
					continue
				case errors.Is(err, errDenied):
					return
				case err == nil:
					permits.Add(1)
				}
				if err := hold(p, err); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	if permits.Load() != 40 || most.Load() > 3 {
		t.Errorf("%d permits for 40 tokens, %d at once", permits.Load(), most.Load())
	}
	if holders, err := s.Peek(t.Context(), "k"); err != nil || len(holders) > 0 {
		t.Errorf("held by %+v, %v", holders, err)
	}
}

// A process is stopped between the permit and the commit: after its Timeout nobody waits for it, and nothing is
// left of it.
func TestNothingIsLeftOfAProcessThatIsStoppedInTheMiddle(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours})
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		cmd, out := child(t, "TestConditionChild", databaseURL(pool))
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "taken" {
			t.Fatalf("the child says %q", lines.Text())
		}
		must(t, cmd.Process.Signal(signal))
		var d pglimit.Decision
		p, err := s.TryAcquireIf(t.Context(), "k", 1, func(ctx context.Context, tx rate.Session) (err error) {
			d, err = limiter.On(tx).Allow(ctx, "k")
			return err
		})
		if err != nil || !d.Allowed || d.Remaining != hours.Burst-1 {
			t.Fatalf("%v: %+v, %v", signal, d, err)
		}
		must(t, p.Release(t.Context()))
		must(t, limiter.Reset(t.Context(), "k"))
	}
}

// TestConditionChild is not a test but the other process of the one above.
func TestConditionChild(t *testing.T) {
	if task() == "" {
		t.Skip("runs as a child of another test")
	}
	pool, err := pgxpool.New(t.Context(), task())
	must(t, err)
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours})
	s, err := semaphore.New(pool, semaphore.Config{Name: "test", Places: 1, Timeout: time.Second})
	must(t, err)
	for {
		_, err = s.TryAcquireIf(t.Context(), "k", 1, func(ctx context.Context, tx rate.Session) error {
			if err := takes(limiter, "k")(ctx, tx); err != nil {
				return err
			}
			fmt.Println("taken")
			select {} // until the parent ends it
		})
		t.Log("the machine is slow: ", err)
	}
}

// With a place in front of a rate, a request without a place spends no token, and one over the rate keeps no place.
func TestAPlaceInFrontOfARate(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: pglimit.PerHour(2)})
	s := newSemaphore(t, pool, semaphore.Config{Places: 1})
	key := httplimit.Constant("all")
	rated := httplimit.New(limiter, httplimit.Config{Key: key})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	handler := httplimit.MaxInFlight(s, httplimit.InFlight{Key: key})(rated)
	get := func(want int, tokens int64) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		d, err := limiter.Peek(t.Context(), "all")
		if must(t, err); w.Code != want || d.Remaining != tokens {
			t.Errorf("status %d, and %d tokens are left; want %d and %d", w.Code, d.Remaining, want, tokens)
		}
	}
	get(http.StatusOK, 1)
	p := acquire(t, s, "all")
	get(http.StatusServiceUnavailable, 1)
	must(t, p.Release(t.Context()))
	get(http.StatusOK, 0)
	get(http.StatusTooManyRequests, 0)
	acquire(t, s, "all")
}
