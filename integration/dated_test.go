package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A call reads the clock, and then another call, which read it later, writes the row. The first one is
// dated by that write, and so it gets what had come back by then: a part of what it wants is
// denied only if no more was there at that time.
func TestACallIsDecidedAsOfTheTimeByWhichItIsDated(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1000).WithBurst(10)
	ask := func(key string, tokens, unit int64) rate.Request {
		return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
	}
	turns := []rate.Request{ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2), ask("k", 2, 2)}
	ahead := ask("k", 10, 2)
	ahead.Ahead = time.Microsecond
	for _, later := range []struct{ at, granted int64 }{{1000005000000, 6}, {1000050000000, 10}} {
		for name, requests := range map[string][]rate.Request{
			"one request":             {ask("k", 10, 2)},
			"in turn":                 turns,
			"ahead":                   {ahead},
			"beside another":          {ask("k", 10, 2), ask("other", 1, 1)},
			"in turn, beside another": append(turns, ask("other", 1, 1)),
			"ahead, beside another":   {ahead, ask("other", 1, 1)},
		} {
			t.Run(fmt.Sprint(name, later.granted), func(t *testing.T) {
				t.Parallel()
				pool := newMigrated(t)
				execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return
					(select greatest(1000000000000, max(at_ns)) from pglimit.token_bucket)`) // as if the other call had been quick
				patiently(t, pool)
				var decisions []pglimit.Decision
				execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values
					('k', 'test', 1000007100000, 1000000, 1000000000000), ('other', 'test', 1000007100000, 1000000, 1000000000000)`)
				other := begin(t, pool)
				execute(t, other, `update pglimit.token_bucket set at_ns = $1 where key = 'k'`, later.at)
				execute(t, other, `select from pglimit.token_bucket where key = 'other' for no key update`) // which a call for both waits for
				calls := &countedCalls{Session: on(pool)}
				whileBlocked(t, pool, func() {
					var err error
					if decisions, err = (strategies.TokenBucket{}).Take(t.Context(), calls, requests); err != nil {
						t.Error(err)
					}
				}, func() { commit(t, other) })
				if decisions == nil {
					return
				}
				if calls.n != 1 {
					t.Errorf("it took %d calls", calls.n)
				}
				var granted int64
				for i, d := range decisions {
					if requests[i].Key == "k" {
						granted += d.Granted
					}
				}
				if at := decisions[0].At.UnixNano(); granted != later.granted || at != later.at {
					t.Errorf("%d granted at %d, want %d at %d: %+v", granted, at, later.granted, later.at, decisions)
				}
			})
		}
	}
}

// countedCalls counts the statements that return a row.
type countedCalls struct {
	pglimit.Session
	n int
}

func (c *countedCalls) Row(ctx context.Context, sql string, args []any, into ...any) error {
	c.n++
	return c.Session.Row(ctx, sql, args, into...)
}

// The row that a call waits for was written a little later than the call's time: what had come back
// before that write is not counted once more.
func TestWhatCameBackBeforeTheLastWriteIsNotTakenTwice(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1000).WithBurst(100)
	pool := newMigrated(t)
	execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('k', 'test', 999000000000, 1000000, 999000000000)`)
	later := begin(t, pool)
	execute(t, later, `update pglimit.token_bucket set full_ns = 1000005000000, at_ns = 1000009000000`) // 5 were used, and 9 ms later given back
	var d pglimit.Decision
	request := rate.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Unit: 5}
	whileBlocked(t, pool, func() { d = takeAll(t, pool, strategies.TokenBucket{}, request)[0] }, func() { commit(t, later) })
	full := query[int64](t, pool, `select full_ns from pglimit.token_bucket`)
	if !d.Allowed || d.Remaining != 95 || d.At.UnixNano() != 1000009000000 || full != 1000014000000 {
		t.Errorf("%+v at %d, full at %d", d, d.At.UnixNano(), full)
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
	for _, d := range takeGroups(t, pool, group) {
		if d.Allowed || d.At.UnixNano() != 1000030000000 {
			t.Errorf("%+v at %d", d, d.At.UnixNano())
		}
	}
}
