package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// A call reads the clock, and then another call, which read it later, writes the row. The first one is
// dated by that write, and so it gets what had come back by then: a part of what it wants is
// denied only if no more was there at that time.
func TestACallIsDecidedAsOfTheTimeByWhichItIsDated(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1000).WithBurst(10)
	ask := func(key string, tokens, unit int64) pglimit.Request {
		return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
	}
	turns := []pglimit.Request{ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2)}
	ahead := ask("k", 10, 2)
	ahead.Ahead = time.Microsecond
	for name, requests := range map[string][]pglimit.Request{
		"one request":             {ask("k", 10, 2)},
		"in turn":                 turns,
		"ahead":                   {ahead},
		"beside another":          {ask("k", 10, 2), ask("other", 1, 1)},
		"in turn, beside another": append(turns, ask("other", 1, 1)),
		"ahead, beside another":   {ahead, ask("other", 1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return
				(select greatest(1000000000000, max(at_ns)) from pglimit.token_bucket)`) // as if the other call had been quick
			var decisions []pglimit.Decision
			for err := pglimit.ErrNothingTaken; errors.Is(err, pglimit.ErrNothingTaken); { // it gives up after 20 ms
				execute(t, pool, `delete from pglimit.token_bucket`)
				execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values
					('k', 'test', 1000007100000, 1000000, 1000000000000), ('other', 'test', 1000007100000, 1000000, 1000000000000)`)
				later := session(t, pool)
				execute(t, later, `update pglimit.token_bucket set at_ns = 1000005000000 where key = 'k'`)
				whileBlocked(t, pool, func() {
					decisions, err = strategies.TokenBucket{}.Take(t.Context(), on(pool), requests)
				}, func() { commit(t, later) })
				if err != nil && !errors.Is(err, pglimit.ErrNothingTaken) {
					t.Fatal(err)
				}
			}
			var granted int64
			for i, d := range decisions {
				if requests[i].Key == "k" {
					granted += d.Granted
				}
			}
			if at := decisions[0].At.UnixNano(); granted != 6 || at != 1000005000000 {
				t.Errorf("%d granted at %d, want 6 at 1000005000000: %+v", granted, at, decisions)
			}
		})
	}
}

// A group is decided as of the time by which it is dated, too: a bucket that others emptied after the
// call had read the clock is not said to have been empty before.
func TestADeniedGroupIsDatedAfterTheGrantsThatItCounts(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerSecond(1000).WithBurst(10)
	execute(t, pool, `create sequence readings`)
	execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return
		case when nextval('public.readings') = 1 then 1000000000000 else 1000030000000 end`) // it was read, and then others were faster
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values
		('empty', 'test', 1000050000000, 1000000, 1000000000000), ('later', 'test', 1000038000000, 1000000, 1000028000000)`)
	group := asks(limit, "empty", "later")
	group[1].Tokens, group[1].Unit = 3, 3
	for _, d := range takeGroups(t, pool, group)[0] {
		if d.Allowed || d.At.UnixNano() != 1000030000000 {
			t.Errorf("%+v at %d", d, d.At.UnixNano())
		}
	}
}
