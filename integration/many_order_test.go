package integration

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// asks is one request for a token of each key.
func asks(limit pglimit.Limit, keys ...string) (requests []pglimit.Request) {
	for _, key := range keys {
		requests = append(requests, pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1})
	}
	return requests
}

// call takes in the background and says when it is done.
func call(t *testing.T, pool *pgxpool.Pool, requests []pglimit.Request) (done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	go func() {
		defer close(done)
		if _, err := (strategies.TokenBucket{}).Take(t.Context(), pool, requests); err != nil {
			t.Error(err)
		}
	}()
	return done
}

// waiting waits until so many sessions wait for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool, sessions int) {
	t.Helper()
	for query[int](t, pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") < sessions {
	}
}

// A call that makes a bucket while it holds others must not wait for one that holds it
// and waits for those: here calls of one limit and of several.
func TestANewKeyAmongOthersIsLockedInItsTurn(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(100)
	for _, key := range []string{"c", "d"} {
		take(t, pool, s, key, limit)
	}
	holder := session(t, pool)
	take(t, holder, s, "d", limit)
	first := call(t, pool, asks(limit, "a", "c", "d")) // waits for d
	waiting(t, pool, 1)
	mixed := asks(limit, "a", "c")
	mixed = append(mixed, pglimit.Request{Limiter: "another", Key: "z", Limit: limit, Tokens: 1, Unit: 1})
	second := call(t, pool, mixed)
	waiting(t, pool, 2)
	commit(t, holder)
	<-first
	<-second
	noDeadlocks(t, pool)
}

// The same among calls of one limit, with a bucket that another makes meanwhile.
func TestAKeyThatBecameKnownIsLockedInItsTurn(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(100)
	take(t, pool, s, "z", limit)
	holder := session(t, pool)
	take(t, holder, s, "new 1", limit)
	first := call(t, pool, asks(limit, "new 1", "new 2", "z")) // waits for new 1
	waiting(t, pool, 1)
	take(t, pool, s, "new 2", limit)
	second := call(t, pool, asks(limit, "new 2", "z"))
	for { // until it has done all it can before the first goes on
		select {
		case <-second:
		default:
			if query[int](t, pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") < 2 {
				continue
			}
		}
		break
	}
	commit(t, holder)
	<-first
	<-second
	noDeadlocks(t, pool)
}

// Calls with overlapping keys, old and new, of one limit and of several, beside resets and
// sweeps: nobody deadlocks.
func TestOverlappingCallsBesideResetsAndSweepsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const callers, calls, keys = 12, 150, 40
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := pglimit.PerSecond(1_000_000)
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(caller), 17))
			for range calls {
				var requests []pglimit.Request
				for _, key := range random.Perm(keys)[:8] {
					requests = append(requests, pglimit.Request{Limiter: "test", Key: strconv.Itoa(key), Limit: limit, Tokens: 3, Unit: 1})
				}
				if caller%4 == 1 {
					requests[0].Limit = limit.WithBurst(500_000)
				}
				_, err := s.Take(t.Context(), pool, requests)
				switch caller % 4 {
				case 2:
					err = errors.Join(err, s.Reset(t.Context(), pool, "test", requests[1].Key))
				case 3:
					_, swept := s.Sweep(t.Context(), pool, 0, 10_000)
					err = errors.Join(err, swept)
					// For the next sweep. One row, so that this locks in no order of its own.
					execute(t, pool, "update pglimit.token_bucket set at_us = at_us - 120000000 where key = $1", requests[2].Key)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	noDeadlocks(t, pool)
}

// What a call is told it got is what the bucket was charged, also if it had to wait while
// tokens flowed back.
func TestACallThatWaitedIsChargedWhatItGets(t *testing.T) {
	t.Parallel()
	const interval, intervals = 50 * time.Millisecond, 8
	limit := pglimit.Every(interval).WithBurst(100)
	for name, requests := range map[string][]pglimit.Request{
		"as much as there is": {{Limiter: "test", Key: "k", Limit: limit, Tokens: 100, Unit: 1}},
		"several for one key": asks(limit, "k", "k", "k", "k", "k", "k", "k", "k", "k", "k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			first, err := s.Take(t.Context(), pool, []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 99, Unit: 99}})
			if err != nil {
				t.Fatal(err)
			}
			holder := session(t, pool)
			execute(t, holder, "select from pglimit.token_bucket for update")
			var granted int64
			var last pglimit.Decision
			whileBlocked(t, pool, func() {
				decisions, err := s.Take(t.Context(), pool, requests)
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
			due := 99 + granted - int64(last.At.Sub(first[0].At)/interval)
			owed := query[int64](t, pool, "select ceil(debt::numeric / token_parts)::bigint from pglimit.token_bucket")
			if owed != due {
				t.Errorf("%d granted; the bucket owes %d tokens, want %d", granted, owed, due)
			}
		})
	}
}
