package integration

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
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

func lease(t testing.TB, pool *pgxpool.Pool, limit pglimit.Limit, tokens, share int64, settle pglimit.Lease, spent int64) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: share, TTL: time.Hour, Settle: settle, Spent: spent,
	})
	must(t, err)
	return got
}

// A lease that makes no sense is refused with the name of the field, and nothing is set
// aside or settled. (Requests and refunds: strategytest.)
func TestLeasesRefuseBadInput(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	execute(t, pool, stoppedClock)
	held := leased(t, pool, "k", hours.WithBurst(10), 4, time.Hour)
	row := func() string {
		return query[string](t, pool, "select string_agg(b::text, ' ') from pglimit.token_bucket b")
	}
	before := row()
	for name, test := range map[string]struct {
		field string
		spoil func(*pglimit.LeaseRequest)
	}{
		"more spent than was leased": {"Spent", func(r *pglimit.LeaseRequest) { r.Spent = 5 }},
		"spent, and no lease":        {"Spent", func(r *pglimit.LeaseRequest) { r.Settle, r.Spent = pglimit.Lease{}, 1 }},
		"negative spent":             {"Spent", func(r *pglimit.LeaseRequest) { r.Spent = -1 }},
		"a negative lease":           {"Spent", func(r *pglimit.LeaseRequest) { r.Settle.Tokens = -1 }},
		"negative tokens":            {"Tokens", func(r *pglimit.LeaseRequest) { r.Tokens = -1 }},
		"no share":                   {"Share", func(r *pglimit.LeaseRequest) { r.Share = 0 }},
		"negative share":             {"Share", func(r *pglimit.LeaseRequest) { r.Share = -1 }},
		"no time":                    {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = 0 }},
		"negative time":              {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = -time.Second }},
		"too long":                   {"TTL", func(r *pglimit.LeaseRequest) { r.TTL = time.Hour + 1 }},
		"no key":                     {"Key", func(r *pglimit.LeaseRequest) { r.Key = "" }},
		"no limiter":                 {"Limiter", func(r *pglimit.LeaseRequest) { r.Limiter = "" }},
	} {
		r := pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: hours.WithBurst(10), Tokens: 1, Share: 1, TTL: time.Minute, Settle: held}
		test.spoil(&r)
		_, err := s.Lease(t.Context(), on(pool), r)
		var bad *pglimit.RequestError
		if !errors.As(err, &bad) || bad.Field != test.field {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	r := pglimit.LeaseRequest{Limiter: "test", Key: "k", Limit: hours.WithBurst(-1), Share: 1, TTL: time.Minute, Settle: held}
	var bad *pglimit.LimitError
	if _, err := s.Lease(t.Context(), on(pool), r); !errors.As(err, &bad) || bad.Field != "Burst" {
		t.Errorf("a negative burst: the error is %v", err)
	}
	if after := row(); after != before {
		t.Errorf("it was %s, and is %s", before, after)
	}
}

// exclusion_range cannot keep a burst, and refuses it whatever it is asked, also beside
// requests that are good.
func TestExclusionRangeRefusesABurst(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.ExclusionRange{}
	burst, good := hours.WithBurst(2), ask("k", hours, 1, 1)
	for name, call := range map[string]func() error{
		"a take": func() error {
			_, err := s.Take(t.Context(), on(pool), []rate.Request{good, ask("l", burst, 1, 1)})
			return err
		},
		"a peek": func() error {
			_, err := s.Take(t.Context(), on(pool), []rate.Request{ask("k", burst, 0, 1)})
			return err
		},
		"a refund": func() error {
			return s.GiveBack(t.Context(), on(pool), []pglimit.Refund{{Request: ask("k", burst, 1, 1), At: time.Now()}})
		},
		"a limiter": func() error {
			_, err := pglimit.New(pool, s, pglimit.Config{Name: "test", Limit: burst})
			return err
		},
	} {
		var bad *pglimit.LimitError
		if err := call(); !errors.As(err, &bad) || bad.Field != "Burst" {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if !take(t, pool, s, "k", hours).Allowed {
		t.Error("a call that was refused took")
	}
}

// 64 callers take and give back at random, at a limit so slow that nothing flows back:
// what was granted and not given back is what the bucket owes in the end.
func TestGrantsLessRefundsAreWhatTheBucketOwes(t *testing.T) {
	t.Parallel()
	const callers, rounds = 32, 12
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := inParts(strategy, pglimit.Every(3000*time.Hour).WithBurst(500))
		keys := []string{"a", "b", "c"}
		var used [3]atomic.Int64
		var work sync.WaitGroup
		for caller := range callers {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(caller), 11))
				var refunds []pglimit.Refund
				for range rounds {
					which := random.IntN(len(keys))
					want := 1 + random.Int64N(5)
					want = min(want, limit.Burst)
					r := rate.Request{Limiter: "test", Key: keys[which], Limit: limit, Tokens: want, Unit: 1}
					d, err := strategy.Take(t.Context(), on(pool), []rate.Request{r})
					if err != nil {
						t.Error(err)
						return
					}
					back := random.Int64N(d[0].Granted + 1)
					used[which].Add(d[0].Granted - back)
					if back == 0 {
						continue
					}
					r.Tokens, r.Unit = back, back
					refunds = append(refunds, pglimit.Refund{Request: r, At: d[0].At})
					if len(refunds) > random.IntN(4) {
						if err := strategy.GiveBack(t.Context(), on(pool), refunds); err != nil {
							t.Error(err)
							return
						}
						refunds = nil
					}
				}
				if err := strategy.GiveBack(t.Context(), on(pool), refunds); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		for i, key := range keys {
			d, err := strategy.Take(t.Context(), on(pool), []rate.Request{{Limiter: "test", Key: key, Limit: limit, Unit: 1}})
			must(t, err)
			// Each refund is short of what flowed back meanwhile, a part of a token in all.
			if got := limit.Burst - d[0].Remaining; got != used[i].Load() && got != used[i].Load()+1 {
				t.Errorf("%s: %d tokens are used as the bucket sees it, %d were granted and not given back", key, got, used[i].Load())
			}
		}
		noDeadlocks(t, pool)
	})
}

// noDeadlocks checks what Postgres has counted. It ends the pool's sessions, which hand in
// their counts then.
func noDeadlocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	pool.Reset()
	watcher := newPool(t, databaseURL(pool), 1)
	if n := query[int64](t, watcher, "select deadlocks from pg_stat_database where datname = current_database()"); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
