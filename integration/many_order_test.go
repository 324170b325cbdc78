package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func ask(key string, limit pglimit.Limit, tokens, unit int64) rate.Request {
	return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
}

// asks is one request for a token of each key.
func asks(limit pglimit.Limit, keys ...string) (requests []rate.Request) {
	for _, key := range keys {
		requests = append(requests, rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1})
	}
	return requests
}

// grouped returns the requests of several groups as those of one call.
func grouped(groups ...[]rate.Request) (requests []rate.Request) {
	for i, group := range groups {
		for _, r := range group {
			r.Group = i + 1
			requests = append(requests, r)
		}
	}
	return requests
}

// patiently makes calls of many, which give up after a moment, wait for rows as long as it
// takes: only then does it show who waits for whom.
func patiently(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	rewrite(t, pool, "token_bucket_take_many", "'lock_timeout', patience", "'lock_timeout', '0'")
	rewrite(t, pool, "token_bucket_take_many", "'1ms'", "'0'")
}

// timelessly lets calls take hours: what they do does not depend on how busy the machine is.
func timelessly(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	rewrite(t, pool, "late_ns", "100000000", "36000000000000")
}

// rewrite a stored function.
func rewrite(t *testing.T, pool *pgxpool.Pool, function, text, with string) {
	t.Helper()
	body := query[string](t, pool, "select pg_get_functiondef(('pglimit.' || $1)::regproc)", function)
	rewritten := strings.ReplaceAll(body, text, with)
	if rewritten == body {
		t.Fatalf("%s has no %s", function, text)
	}
	execute(t, pool, rewritten)
}

// call takes in the background and says when it is done. A bucket that changed meanwhile, or is held,
// is no error here.
func call(t *testing.T, pool *pgxpool.Pool, requests []rate.Request) (done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	go func() {
		defer close(done)
		if _, err := (strategies.TokenBucket{}).Take(t.Context(), on(pool), requests); err != nil && sqlState(err) != "40001" && sqlState(err) != "55P03" {
			t.Error(err)
		}
	}()
	return done
}

// waiting waits until so many sessions wait for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool, sessions int) {
	t.Helper()
	until(t, fmt.Sprint(sessions, " sessions wait for a lock"), func() bool {
		return query[int](t, pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") >= sessions
	})
}

// New keys are inserted in one order: whoever waits for one holds those before it, and none
// behind it. Known keys are locked in the same order.
func TestKeysAreLockedAndInsertedInOneOrder(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"new": false, "known": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			patiently(t, pool)
			timelessly(t, pool)
			limit := hours.WithBurst(100)
			keys := []string{"a", "b", "c", "d", "e"}
			if known {
				for _, key := range keys {
					take(t, pool, s, key, limit)
				}
			}
			for _, stuck := range keys {
				holder := begin(t, pool)
				take(t, holder, s, stuck, limit)
				mixed := asks(limit, "e", "c", "a", "b", "d")
				done := call(t, pool, mixed)
				waiting(t, pool, 1)
				for _, key := range keys {
					probe := begin(t, pool)
					execute(t, probe, "set local lock_timeout = '100ms'")
					_, err := tryTake(t, probe, s, key, limit)
					if err != nil && sqlState(err) != "55P03" {
						t.Fatal(err)
					}
					if held := err != nil; held != (key <= stuck) {
						t.Errorf("while it waits for %s, %s is held: %v", stuck, key, held)
					}
					_ = probe.Rollback(t.Context())
				}
				_ = holder.Rollback(t.Context())
				<-done
				if !known {
					if _, err := s.ResetAll(t.Context(), on(pool), "test"); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// A row that is not the usual case is locked out of order, and so not waited for: the call may hold
// others, which it updated, or found changed when it had waited for them.
func TestACallWaitsForNoRowOutOfOrder(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	rewrite(t, pool, "token_bucket_take_many", "'lock_timeout', patience", "'lock_timeout', '0'")
	timelessly(t, pool)
	for _, key := range []string{"a", "b"} {
		take(t, pool, s, key, hours.WithBurst(100))
	}
	requests := append(asks(pglimit.PerSecond(1).WithBurst(100), "a"), asks(hours.WithBurst(100), "b")...) // a has another price now
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.token_bucket where key = 'a' for no key update")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Take(ctx, on(pool), requests); !errors.Is(err, pglimit.ErrNothingTaken) {
		t.Errorf("a is held, and b was updated: %v", err)
	}

	other := begin(t, pool)
	execute(t, other, "update pglimit.token_bucket set full_ns = full_ns + 99 * token_ns where key = 'b'")
	done := call(t, pool, requests)
	waiting(t, pool, 1)
	commit(t, other) // now b has nothing left
	select {
	case <-done:
	case <-ctx.Done():
		t.Error("it found b changed, and waits for a")
	}
}

// What a call is told it got is what the bucket was charged, also if it had to wait while
// tokens flowed back.
func TestACallThatWaitedIsChargedWhatItGets(t *testing.T) {
	t.Parallel()
	const interval, intervals = 50 * time.Millisecond, 8
	limit := pglimit.Every(interval).WithBurst(100)
	for name, requests := range map[string][]rate.Request{
		"as much as there is": {{Limiter: "test", Key: "k", Limit: limit, Tokens: 100, Unit: 1}},
		"several for one key": asks(limit, "k", "k", "k", "k", "k", "k", "k", "k", "k", "k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			first, err := s.Take(t.Context(), on(pool), []rate.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 99, Unit: 99}})
			must(t, err)
			holder := begin(t, pool)
			execute(t, holder, "select from pglimit.token_bucket for update")
			var granted int64
			var last pglimit.Decision
			whileBlocked(t, pool, func() {
				decisions, err := s.Take(t.Context(), on(pool), requests)
				if err != nil {
					t.Error(err)
					return
				}
				for _, last = range decisions {
					granted += last.Granted
				}
			}, func() {
				passes(t, pool, intervals*interval)
				commit(t, holder)
			})
			if waited := last.At.Sub(first[0].At); waited < intervals*interval || granted < intervals {
				t.Errorf("%d granted, %v after the first take", granted, waited)
			}
			// All that was had, and has not flowed back since, is owed.
			due := max(0, 99-int64(last.At.Sub(first[0].At)/interval)) + granted
			owed := query[int64](t, pool, "select ceil((full_ns - at_ns)::numeric / token_ns)::bigint from pglimit.token_bucket")
			if owed != due {
				t.Errorf("%d granted; the bucket owes %d tokens, want %d", granted, owed, due)
			}
		})
	}
}

// A call that is sure to decide locks before it looks, in the order of the keys: while it waits for the first, the
// second is free.
func TestASureCallLocksInTheOrderOfTheKeys(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	for _, key := range []string{"a", "b"} {
		take(t, pool, s, key, hours)
	}
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.token_bucket where key = 'a' for update")
	var err error
	whileBlocked(t, pool, func() {
		_, err = pool.Exec(t.Context(), `select pglimit.token_bucket_take_many(array['a', 'b'], '{test}', '{1000}', '{100000}',
			'{1}', null, '{1,1}', null, null, null, true, null)`)
	}, func() {
		if _, err := pool.Exec(t.Context(), "select from pglimit.token_bucket where key = 'b' for update nowait"); err != nil {
			t.Errorf("it waits for a, and holds b: %v", err)
		}
		commit(t, holder)
	})
	if err != nil {
		t.Error(err)
	}
}

// wants are one token of each key, asked of a Limiter.
func wants(keys ...string) (requests []pglimit.Request) {
	for _, key := range keys {
		requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
	}
	return requests
}
