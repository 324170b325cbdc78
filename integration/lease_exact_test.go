package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// leased is a lease of all the tokens asked for, as long as ttl.
func leased(t *testing.T, pool *pgxpool.Pool, key string, limit pglimit.Limit, tokens int64, ttl time.Duration) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Share: 1, TTL: ttl,
	})
	if err != nil || got.Tokens != tokens {
		t.Fatalf("%+v, %v", got, err)
	}
	return got
}

// A lease is settled at its end, or just after: it counts as spent by then. Nothing comes
// back, and nobody owes less than nothing.
func TestALeaseThatIsSettledTooLateIsSpent(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	for _, late := range []time.Duration{0, time.Microsecond, time.Second} {
		for _, spent := range []int64{0, 4} {
			t.Run(late.String()+map[int64]string{0: " unspent", 4: " spent"}[spent], func(t *testing.T) {
				t.Parallel()
				pool := newMigrated(t)
				execute(t, pool, stoppedClock)
				mine := leased(t, pool, "k", hours.WithBurst(10), 4, ttl)
				takeAll(t, pool, strategies.TokenBucket{}, ask("k", hours.WithBurst(10), 3, 3))
				moveClock(t, pool, ttl+late)
				for range 2 {
					if got := lease(t, pool, hours.WithBurst(10), 0, 1, mine, spent); got.Left.Remaining != 3 {
						t.Errorf("%d are left as it says, want 3", got.Left.Remaining)
					}
					if n := left(t, pool, hours.WithBurst(10)); n != 3 {
						t.Errorf("%d are left, want 3", n)
					}
				}
				if n := query[int64](t, pool, "select tokens_owed from pglimit.buckets where tokens_leased = 0"); n != 7 {
					t.Errorf("%d are owed, want 7", n)
				}
				if got := lease(t, pool, hours.WithBurst(10), 9, 1, mine, spent); got.Tokens != 3 {
					t.Errorf("%d can be leased, want 3", got.Tokens)
				}
			})
		}
	}
}

// While a lease is out its tokens do not flow back: the time before its end is not credited
// again when it is over. Whoever looks sees the same number.
func TestTheTimeBeforeALeasesEndIsCreditedOnce(t *testing.T) {
	t.Parallel()
	limit, fast := pglimit.PerSecond(1).WithBurst(10), pglimit.PerSecond(10).WithBurst(10)
	s := strategies.TokenBucket{}
	for _, test := range []struct {
		name          string
		taken, leased int64
		ttl, later    time.Duration // after the end
		by            pglimit.Limit
		want          int64
	}{
		{"all is leased", 0, 10, 9 * time.Second, 0, limit, 0},
		{"all is leased, 3 s later", 0, 10, 9 * time.Second, 3 * time.Second, limit, 3},
		{"just before a token is there", 0, 10, 9 * time.Second, 3*time.Second - time.Microsecond, limit, 2},
		{"half is taken, and flows back", 5, 5, 9 * time.Second, 0, limit, 5},
		{"half is taken, and flows back meanwhile", 5, 5, 3 * time.Second, 0, limit, 3},
		{"half is taken, 2 s later", 5, 5, 3 * time.Second, 2 * time.Second, limit, 5},
		{"by a faster limit", 0, 10, 9 * time.Second, 300 * time.Millisecond, fast, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			execute(t, pool, stoppedClock)
			by := test.by
			takes := func(requests ...pglimit.Request) int64 {
				return takeAll(t, pool, s, requests...)[0].Granted
			}
			sees := map[string]func(key string) int64{
				"a peek":                  func(key string) int64 { return takeAll(t, pool, s, ask(key, by, 0, 1))[0].Remaining },
				"a take of what there is": func(key string) int64 { return takes(ask(key, by, 10, 1)) },
				"a take of many":          func(key string) int64 { return takes(ask(key, by, 10, 1), ask("other of "+key, by, 1, 1)) },
				"a take of one at a time": func(key string) (n int64) {
					for takes(ask(key, by, 1, 1)) > 0 {
						n++
					}
					return n
				},
				"a lease": func(key string) int64 {
					got, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{Limiter: "test", Key: key, Limit: by, Tokens: 10, Share: 1, TTL: time.Second})
					if err != nil {
						t.Error(err)
					}
					return got.Tokens
				},
				"the view": func(key string) int64 {
					return 10 - query[int64](t, pool, "select tokens_owed + tokens_leased from pglimit.buckets where key = $1", key)
				},
			}
			if by != limit {
				delete(sees, "the view") // it knows the limit of the row only
			}
			for key := range sees {
				if test.taken > 0 {
					takes(ask(key, limit, test.taken, test.taken))
				}
				leased(t, pool, key, limit, test.leased, test.ttl)
			}
			moveClock(t, pool, test.ttl+test.later)
			for key, see := range sees {
				if n := see(key); n != test.want {
					t.Errorf("%s: %d tokens, want %d", key, n, test.want)
				}
			}
		})
	}
}

// A bucket that owes nothing but has a lease out is not swept: the lease may yet be owed. It
// goes when that has flowed back, a minute ago.
func TestABucketWithALeaseIsNotSwept(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	execute(t, pool, stoppedClock)
	leased(t, pool, "k", pglimit.Every(time.Hour).WithBurst(5), 5, time.Hour)
	for _, step := range []struct {
		by   time.Duration
		want int64
		when string
	}{
		{30 * time.Minute, 0, "the lease is out"},
		{30 * time.Minute, 0, "the lease is over"},
		{5*time.Hour + time.Minute - time.Microsecond, 0, "it was full for almost a minute"},
		{time.Microsecond, 1, "it was full for a minute"},
	} {
		moveClock(t, pool, step.by)
		if n := sweepOnce(t, pool, s); n != step.want {
			t.Errorf("%s: %d rows removed, want %d", step.when, n, step.want)
		}
	}
}

// A lease that sets nothing aside and settles nothing leaves the row as it was written.
func TestALeaseOfNothingWritesNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := hours.WithBurst(5)
	if got := lease(t, pool, limit, 5, 1, pglimit.Lease{}, 0); got.Tokens != 5 {
		t.Fatalf("%+v", got)
	}
	const version = "select ctid::text from pglimit.token_bucket"
	before := query[string](t, pool, version)
	unknown := pglimit.Lease{Tokens: 5, Until: time.Unix(1, 0)}
	for _, settle := range []pglimit.Lease{{}, unknown} {
		if got := lease(t, pool, limit, 5, 1, settle, 0); got.Tokens != 0 {
			t.Fatalf("%+v", got)
		}
	}
	if after := query[string](t, pool, version); after != before {
		t.Errorf("the row was written: it was at %s and is at %s", before, after)
	}
}
