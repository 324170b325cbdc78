package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// A call for groups that another call overtakes, or that had to wait for long, has taken nothing,
// and decides anew.
func TestAGroupThatWasOvertakenDecidesAnew(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(2)
	for name, test := range map[string]struct {
		takes   bool // the last token, before the look, and commits behind it
		makes   bool // the row, and rolls back
		waits   time.Duration
		allowed bool
		owed    string // by a, b and c in the end
	}{
		"overtaken":          {true, false, 0, false, "1 2 1"},
		"late":               {false, false, 150 * time.Millisecond, true, "2 2 2"},
		"late, a row is new": {false, true, 150 * time.Millisecond, true, "2 1 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			patiently(t, pool)
			for _, key := range []string{"a", "b", "c"} {
				if key != "b" || !test.makes {
					take(t, pool, strategies.TokenBucket{}, key, limit)
				}
			}
			holder := begin(t, pool)
			if test.takes || test.makes {
				take(t, holder, strategies.TokenBucket{}, "b", limit)
			} else {
				execute(t, holder, "select from pglimit.token_bucket where key = 'b' for update")
			}
			var decisions []pglimit.Decision
			var err error
			var over time.Time
			whileBlocked(t, pool, func() {
				group := asks(limit, "c", "b", "a")
				group[0].Impatient = true
				decisions, err = strategies.TokenBucket{}.Take(t.Context(), on(pool), grouped(group))
			}, func() {
				passes(t, pool, test.waits)
				over = query[time.Time](t, pool, "select clock_timestamp()")
				if !test.makes {
					commit(t, holder)
				} else if err := holder.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range decisions {
				if (d.Granted > 0) != test.allowed || d.At.Before(over) {
					t.Errorf("%+v: want granted %v, and dated after %v", d, test.allowed, over)
				}
			}
			owed := query[string](t, pool, "select string_agg(tokens_owed::text, ' ' order by key) from pglimit.buckets")
			if owed != test.owed {
				t.Errorf("%s are owed, want %s", owed, test.owed)
			}
		})
	}
}

// A refund or a reset that commits behind the look of a call counts: nothing is denied while the tokens
// are there. (token_bucket_take_many does not wait for such a row.)
func TestWhatComesBackBehindTheLookIsSeen(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(4)
	ask := func(key string, tokens, unit int64) pglimit.Request {
		return pglimit.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
	}
	s := strategies.TokenBucket{}
	for function, call := range map[string]func(context.Context, database) ([]pglimit.Decision, error){
		"token_bucket_take_groups": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), grouped([]pglimit.Request{ask("k", 1, 1)}, []pglimit.Request{ask("k", 2, 2)}))
		},
		"token_bucket_take": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), []pglimit.Request{ask("k", 3, 1)})
		},
		"token_bucket_take, in turn": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), []pglimit.Request{ask("k", 1, 1), ask("k", 2, 2)})
		},
	} {
		for name, giveBack := range map[string]func(t *testing.T, db database, three pglimit.Refund){
			"refund": func(t *testing.T, db database, three pglimit.Refund) {
				must(t, s.GiveBack(t.Context(), on(db), []pglimit.Refund{three}))
			},
			"reset": func(t *testing.T, db database, _ pglimit.Refund) { must(t, s.Reset(t.Context(), on(db), "test", "k")) },
		} {
			t.Run(function+", "+name, func(t *testing.T) {
				t.Parallel()
				pool := newMigrated(t)
				// The clock stands still: it must not show how long they waited.
				execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
				patiently(t, pool)
				three := ask("k", 3, 3)
				first, err := s.Take(t.Context(), on(pool), []pglimit.Request{three})
				must(t, err)
				holder := begin(t, pool)
				giveBack(t, holder, pglimit.Refund{Request: three, At: first[0].At})
				var decisions []pglimit.Decision
				whileBlocked(t, pool, func() { decisions, err = call(t.Context(), pool) }, func() { commit(t, holder) })
				must(t, err)
				for _, d := range decisions {
					if d.Granted == 0 {
						t.Errorf("denied: %+v", d)
					}
				}
				if d := take(t, pool, s, "k", limit); d.Remaining != 0 {
					t.Errorf("%+v: want the last token", d)
				}
			})
		}
	}
}

// In a transaction of the caller's, which locks the rows, a group is granted if the tokens come back
// while it waits for a row, and says what is left. It cannot be late, however slow the machine is: an
// error would end that transaction.
func TestTokensComeBackBeforeTheRowsAreLocked(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := hours.WithBurst(2)
	s := strategies.TokenBucket{}
	take(t, pool, s, "held", limit)
	empty := []pglimit.Request{{Limiter: "test", Key: "without tokens", Limit: limit, Tokens: 2, Unit: 2}}
	takeGroups(t, pool, empty)
	rewrite(t, pool, "late_ns", "100000000", "(-1)")
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.token_bucket where key = 'held' for update")
	execute(t, holder, "update pglimit.token_bucket set full_ns = at_ns where key = 'without tokens'")
	var d []pglimit.Decision
	caller := begin(t, pool)
	whileBlocked(t, pool, func() { d = takeGroups(t, caller, asks(limit, "held"), asks(limit, "without tokens")) }, func() { commit(t, holder) })
	if d[0].Granted != 1 || d[0].Remaining != 0 || d[1].Granted != 1 || d[1].Remaining != 1 {
		t.Errorf("%+v", d)
	}
}

// Rows with a lease, or under another price of a token, are not what they seem: here 10 tokens of 10
// are leased, 10 are owed, and 1 is owed in a row that was written after the call's clock was read.
func TestGroupsOfRowsThatNeedACloserLook(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns) values
		('leased', 'test', 1000000000000, 1000000000, 1000000000000, 10000000000, 2000000000000),
		('owed', 'test', 1005000000000, 500000000, 1000000000000, null, null),
		('owed little', 'test', 1000500005000, 500000000, 1000000005000, null, null)`)
	for key, want := range map[string]bool{"leased": false, "owed": false, "owed little": true} {
		for _, locked := range []bool{false, true} {
			var granted bool
			in := begin(t, pool)
			err := in.QueryRow(t.Context(), `select d.grants[1] > 0 from pglimit.token_bucket_decide(
				array[$1::text], '{test}', '{1000000000}', '{10000000000}', null, '{1}', null, null, '{1}', $2) d`, key, locked).Scan(&granted)
			if err != nil || granted != want {
				t.Errorf("%s, locked %t: granted %t, %v", key, locked, granted, err)
			}
			must(t, in.Rollback(t.Context()))
		}
	}
}

// A row that was written before the clock stepped back denies no group for as long as the step.
// It owes what it owed. So it is in a transaction of the caller's.
func TestGroupsWhenTheClockStepsBack(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, steppingClock)
	const token = 50 * time.Millisecond
	limit := pglimit.Every(token).WithBurst(3)
	for name, db := range map[string]func() database{
		"alone":                    func() database { return pool },
		"the caller's transaction": func() database { return begin(t, pool) },
	} {
		three := asks(limit, name+" empty", name+" used")
		three[0].Tokens, three[0].Unit = 3, 3
		takeGroups(t, pool, three)
		step(t, pool, -time.Hour)
		group := asks(limit, name+" empty", name+" used", name+" new")
		in := db()
		d := takeGroups(t, in, group)
		for due := d[0].At.Add(token); d[0].Granted == 0; d = takeGroups(t, in, group) {
			if d[0].Allowed || d[0].RetryAfter > token || !d[1].Allowed || d[1].RetryAfter > 0 || !d[2].Allowed || d[0].At.After(due) {
				t.Fatalf("%s: %+v", name, d)
			}
		}
		if next := takeGroups(t, in, asks(limit, name+" empty", name+" new")); next[0].Granted > 0 && next[1].Remaining > 1 && next[0].At.Sub(d[0].At) < token {
			t.Errorf("%s: %+v after %+v", name, next, d)
		}
	}
}

// Of a row that was written before the clock stepped back it is not known what it owes: it counts as
// full, until it is locked and corrected. This one is used up.
func TestAPlanWithARowAheadOfTheClock(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{false, true} {
		pool := newMigrated(t)
		execute(t, pool, stoppedClock)
		limit := pglimit.PerHour(1000)
		used := asks(limit, "k")
		used[0].Tokens, used[0].Unit = 1000, 1000
		takeGroups(t, pool, used)
		moveClock(t, pool, -time.Hour)
		granted := query[bool](t, pool, fmt.Sprintf(`select d.grants[1] > 0
			from pglimit.token_bucket_decide('{k}', array[(select limiter from pglimit.token_bucket)], '{%d}', '{%d}', null, '{1}', null, null, '{1}', %t) d`,
			int64(limit.Token()), int64(limit.Window()), locked))
		if ahead := query[bool](t, pool, "select at_ns > pglimit.clock_ns() from pglimit.token_bucket"); granted || ahead {
			t.Errorf("locked %t: granted %t; the row is still ahead: %t", locked, granted, ahead)
		}
	}
}

// A step back of less than 10 ms is no step: what the plan read as of the row's own time is written as
// of that time. This lease had ended by then.
func TestGroupsOfARowThatIsALittleAhead(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000`)
	execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns)
		values ('k', 'test', 1000000000000, 1000000, 1000009000000, 500000000, 1000005000000)`)
	granted := query[bool](t, pool, `select grants[1] > 0 from pglimit.token_bucket_decide('{k}', '{test}', '{1000000}', '{1000000000}', null, '{504}', null, null, '{1}', true)`)
	there := query[int64](t, pool, `select (1000000000 - (full_ns - at_ns)) / 1000000 from pglimit.token_bucket where token_ns = 1000000 and leased_ns is null`)
	if !granted || there != 0 {
		t.Errorf("granted %t, then %d are there", granted, there)
	}
}

// Whoever locks the table, as REINDEX does, holds an impatient call up for a moment only.
func TestGroupsGiveUpOnALockedTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, begin(t, pool), "lock table pglimit.token_bucket in share mode") // until the end
	ctx := soon(t, time.Minute)
	_, err := strategies.TokenBucket{}.Take(ctx, on(pool), grouped(asks(plenty, "a"), asks(plenty, "b")))
	if ctx.Err() != nil || sqlState(err) != "55P03" || !errors.Is(err, rate.ErrNothingTaken) {
		t.Errorf("%v, %v", ctx.Err(), err)
	}
}

// A row ahead of the clock that is not needed, because another bucket denies its group, is left as it
// is. The call for it and other groups ends.
func TestARowAheadOfTheClockInADeniedGroup(t *testing.T) {
	t.Parallel()
	for name, lockFirst := range map[string]bool{"not locked": false, "locked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, `create or replace function pglimit.clock_ns() returns bigint language sql volatile return 1000000000000000`)
			execute(t, pool, `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns) values
				('b', 'test', 4600000000000000, 1000000000000, 4600000000000000), ('c', 'test', 1010000000000000, 1000000000000, 1000000000000000)`)
			hasty := newPool(t, withParameter(databaseURL(pool), "statement_timeout", "60s"), 1)
			granted := query[[]int64](t, hasty, `select grants from pglimit.token_bucket_decide('{a,b,c}', '{test}', '{1000000000000}', '{10000000000000}',
				null, '{1,1,1}', null, null, '{1,3}', $1)`, lockFirst)
			if !slices.Equal(granted, []int64{1, 0, 0}) {
				t.Errorf("granted: %v", granted)
			}
		})
	}
}
