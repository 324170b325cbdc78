package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A denial waits for nobody: not even for who is taking what there is of the bucket. It may
// deny by the row as last committed, because a take can only leave less.
func TestADenialDoesNotWaitForWhoUpdatesTheRow(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := pglimit.Every(time.Hour).WithBurst(5)
	ask := func(key string, tokens int64) pglimit.Request {
		return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: tokens}
	}
	for _, key := range []string{"a", "b"} {
		if _, err := s.Take(t.Context(), on(pool), []pglimit.Request{ask(key, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	holder := begin(t, pool)
	if _, err := s.Take(t.Context(), on(holder), []pglimit.Request{ask("a", 1)}); err != nil {
		t.Fatal(err)
	}
	for name, requests := range map[string][]pglimit.Request{
		"alone":             {ask("a", 5)},
		"with others":       {ask("a", 5), ask("b", 5), ask("c", 1)},
		"as one of several": {ask("a", 5), ask("a", 5)},
	} {
		ctx := soon(t, time.Minute)
		decisions, err := taken(pool, func() ([]pglimit.Decision, error) { return s.Take(ctx, on(pool), requests) })
		if err != nil || decisions[0].Allowed {
			t.Errorf("%s: %+v, %v", name, decisions, err)
		}
	}
	commit(t, holder)
}

// What was planned for several buckets, and then waited for somebody who inserts the same key, and gives
// that up, is too old: tokens that came back meanwhile would come on top.
func TestAPlanThatWaitedIsNotKept(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	patiently(t, pool)
	limit := pglimit.PerSecond(100).WithBurst(10)
	take(t, pool, s, "a", limit)
	holder := begin(t, pool)
	take(t, holder, s, "b", limit)
	var err error
	whileBlocked(t, pool, func() {
		_, err = pool.Exec(t.Context(), `select pglimit.token_bucket_take_many(array['a', 'b'], '{test}', '{10000000}', '{100000000}',
			'{10,10}', '{1,2}', '{10,10}', '{1,1}', null, null, false, '20ms')`)
	}, func() {
		passes(t, pool, 150*time.Millisecond)
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if sqlState(err) != "40001" {
		t.Errorf("a plan that is 150 ms old: %v", err)
	}
}

// A row that changes between the look of a call for several buckets and its lock is not charged by the
// look: the call takes nothing, and one that is made again decides by the row as it is now.
func TestAPlanForARowThatChangedIsNotKept(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(10)
	for name, test := range map[string]struct {
		change  string
		granted int64
	}{
		"used":     {"update pglimit.token_bucket set full_ns = full_ns + 3 * token_ns where key = 'a'", 2},
		"refunded": {"update pglimit.token_bucket set full_ns = full_ns - 3 * token_ns where key = 'a'", 8},
		"reset":    {"delete from pglimit.token_bucket where key = 'a'", 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			patiently(t, pool)
			execute(t, pool, stoppedClock)
			for range 5 {
				take(t, pool, s, "a", limit)
			}
			// It waits behind the look.
			rewrite(t, pool, "token_bucket_decide", "asked := array_fill", "perform pg_catalog.pg_advisory_xact_lock_shared(1); asked := array_fill")
			holder := begin(t, pool)
			execute(t, holder, "select pg_catalog.pg_advisory_xact_lock(1)")
			want := []pglimit.Request{{Limiter: "test", Key: "a", Limit: limit, Tokens: 10, Unit: 1}, {Limiter: "test", Key: "b", Limit: limit, Tokens: 10, Unit: 1}}
			var first error
			var decisions []pglimit.Decision
			whileBlocked(t, pool, func() {
				_, first = pool.Exec(t.Context(), `select pglimit.token_bucket_take_many(array['a', 'b'], '{test}', array[$1::bigint], array[$2::bigint],
					'{10,10}', '{1,2}', '{10,10}', '{1,1}', null, null, false, '20ms')`, limit.Token().Nanoseconds(), limit.Window().Nanoseconds())
				decisions = takeAll(t, pool, s, want...)
			}, func() {
				execute(t, pool, test.change)
				commit(t, holder)
			})
			if sqlState(first) != "40001" {
				t.Errorf("by the look, which is out of date: %v", first)
			}
			if decisions[0].Granted != test.granted || decisions[1].Granted != 10 {
				t.Errorf("then: %+v, want %d granted of a", decisions, test.granted)
			}
		})
	}
}

// Two calls saw the same tokens and wait for the row, of a window so short that more is accepted behind the lock
// than was planned: less is not, and one of them gets nothing.
func TestTwoPlansForTheSameTokensAreNotBothKept(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.SlidingWindow{}
	execute(t, pool, stoppedClock)
	limit := pglimit.PerSecond(100_000).WithBurst(100)
	takeAll(t, pool, s, ask("k", limit, 1, 1))
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.sliding_window for update")
	granted := make(chan int64, 2)
	for range cap(granted) {
		go func() {
			decisions, err := s.Take(t.Context(), on(pool), []pglimit.Request{ask("k", limit, 60, 60)})
			if err != nil {
				t.Error(err)
				decisions = make([]pglimit.Decision, 1)
			}
			granted <- decisions[0].Granted
		}()
	}
	waiting(t, pool, cap(granted))
	commit(t, holder)
	if first, second := <-granted, <-granted; first+second != 60 {
		t.Errorf("%d and %d granted of the 99 that there are, want 60 together", first, second)
	}
}
