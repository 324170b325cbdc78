package integration

import (
	"context"
	"fmt"
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
	for _, later := range []struct{ at, granted int64 }{{1000005000000, 6}, {1000050000000, 10}} {
		for name, requests := range map[string][]pglimit.Request{
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

// A row that was written up to 10 ms ahead of the clock, which has stepped back by less than counts, is
// read as of that write, by which the decision is dated: a full bucket is full.
func TestARowThatIsALittleAhead(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1000).WithBurst(100)
	for name, test := range map[string]struct{ owed, granted int64 }{"full": {0, 100}, "used": {95, 5}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
			execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
				select k, 'test', 1000009000000 + $1::bigint * 1000000, 1000000, 1000009000000 from unnest(array['single', 'first of two', 'group', 'peek']) k`, test.owed)
			s := strategies.TokenBucket{}
			as := func(key string) pglimit.Request {
				return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: test.granted, Unit: test.granted}
			}
			for key, d := range map[string]pglimit.Decision{
				"single":       takeAll(t, pool, s, as("single"))[0],
				"first of two": takeAll(t, pool, s, as("first of two"), as("first of two"))[0],
				"group":        takeGroups(t, pool, []pglimit.Request{as("group")})[0],
			} {
				if d.Granted != test.granted || d.Remaining != 0 || d.At.UnixNano() != 1000009000000 {
					t.Errorf("%s: %+v at %d", key, d, d.At.UnixNano())
				}
			}
			peek := as("peek")
			peek.Tokens, peek.Unit = 0, 1
			for _, d := range []pglimit.Decision{takeAll(t, pool, s, peek)[0], takeAll(t, pool, s, peek, as("another"))[0]} {
				if !d.Allowed || d.Remaining != test.granted || d.At.UnixNano() != 1000009000000 {
					t.Errorf("peek: %+v at %d", d, d.At.UnixNano())
				}
			}
		})
	}
}

// However often a call peeks at a key, it need not be there for sure: a row that was written before the
// clock stepped back is told as it is, dated by the clock, and nothing is written.
func TestPeeksAtARowThatIsFarAhead(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1).WithBurst(600)
	for _, by := range []time.Duration{11 * time.Millisecond, 50 * time.Millisecond, time.Minute} {
		pool := newMigrated(t)
		execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
		execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('k', 'test', 1005000000000 + $1::bigint, 1000000000, 1000000000000 + $1::bigint)`, by.Nanoseconds())
		requests := asks(limit, "k", "k", "other")
		for i := range requests {
			requests[i].Tokens = 0
		}
		before := query[string](t, pool, `select b::text from pglimit.token_bucket b`)
		for n := range requests { // one, two for the same key, three for two keys
			for i, d := range takeAll(t, pool, strategies.TokenBucket{}, requests[:n+1]...) {
				if !d.Allowed || d.At.UnixNano() != 1000000000000 || i < 2 && d.Remaining != 595 {
					t.Errorf("%v ahead: %s: %+v at %d", by, requests[i].Key, d, d.At.UnixNano())
				}
			}
		}
		if after := query[string](t, pool, `select b::text from pglimit.token_bucket b`); after != before {
			t.Errorf("%v ahead: the row was %s and is %s", by, before, after)
		}
	}
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
	request := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Unit: 5}
	whileBlocked(t, pool, func() { d = takeAll(t, pool, strategies.TokenBucket{}, request)[0] }, func() { commit(t, later) })
	full := query[int64](t, pool, `select full_ns from pglimit.token_bucket`)
	if !d.Allowed || d.Remaining != 95 || d.At.UnixNano() != 1000009000000 || full != 1000014000000 {
		t.Errorf("%+v at %d, full at %d", d, d.At.UnixNano(), full)
	}
}

// The row that a call waits for was written before the clock stepped back, by a minute: the call corrects
// it, whatever it has seen before.
func TestACallThatWaitsForARowAheadOfTheClockCorrectsIt(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1).WithBurst(600)
	for name, requests := range map[string][]pglimit.Request{
		"one request": {{Limiter: "test", Key: "k", Limit: limit, Tokens: 5, Unit: 5}},
		"in turn":     asks(limit, "k", "k", "k", "k", "k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
			execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('k', 'test', 999000000000, 1000000000, 999000000000)`)
			ahead := begin(t, pool)
			execute(t, ahead, `update pglimit.token_bucket set full_ns = 1065000000000, at_ns = 1060000000000`)
			var decisions []pglimit.Decision
			whileBlocked(t, pool, func() { decisions = takeAll(t, pool, strategies.TokenBucket{}, requests...) }, func() { commit(t, ahead) })
			last := decisions[len(decisions)-1] // 5 were owed
			if !last.Allowed || last.Remaining != 590 || last.At.UnixNano() != 1000000000000 {
				t.Errorf("%+v at %d", last, last.At.UnixNano())
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
	for _, d := range takeGroups(t, pool, group) {
		if d.Allowed || d.At.UnixNano() != 1000030000000 {
			t.Errorf("%+v at %d", d, d.At.UnixNano())
		}
	}
}

// The clock steps back by ten seconds between two of its readings in one call. As of the first, ten
// tokens have come back, and are granted; the bucket owes these ten then, and not those that have come back,
// too: nobody is denied for the length of the step.
func TestTheClockStepsBackBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	limit := pglimit.PerSecond(1).WithBurst(10)
	pool := newMigrated(t)
	execute(t, pool, `create sequence public.readings`)
	execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile
		return case when nextval('public.readings') <= 2 then 5000000000000 else 4990000000000 end`)
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values ('k', 'test', 5000000000000, 1000000000, 4990000000000)`)
	request := pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 10, Unit: 10}
	d := takeAll(t, pool, strategies.TokenBucket{}, request)[0]
	if owed := query[int64](t, pool, `select full_ns - at_ns from pglimit.token_bucket`); d.Granted != 10 || d.ResetAfter != limit.Window() || owed != int64(limit.Window()) {
		t.Errorf("%+v, owes %d", d, owed)
	}
}
