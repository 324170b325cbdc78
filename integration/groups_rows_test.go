package integration

import (
	"context"
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
			must(t, err)
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
	ask := func(key string, tokens, unit int64) rate.Request {
		return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
	}
	s := strategies.TokenBucket{}
	for function, call := range map[string]func(context.Context, database) ([]pglimit.Decision, error){
		"token_bucket_take_groups": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), grouped([]rate.Request{ask("k", 1, 1)}, []rate.Request{ask("k", 2, 2)}))
		},
		"token_bucket_take": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), []rate.Request{ask("k", 3, 1)})
		},
		"token_bucket_take, in turn": func(ctx context.Context, db database) ([]pglimit.Decision, error) {
			return s.Take(ctx, on(db), []rate.Request{ask("k", 1, 1), ask("k", 2, 2)})
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
				first, err := s.Take(t.Context(), on(pool), []rate.Request{three})
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
