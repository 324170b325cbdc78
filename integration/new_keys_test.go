package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// 64 callers of two processes make up keys: no more rows are made than Config.NewKeys grants in that time, by the
// database's clock, and keys that have a row are served all the while. A sweep meanwhile changes neither.
func TestNewKeysOfTwoProcesses(t *testing.T) {
	t.Parallel()
	// That each strategy says whether a key has a row is a test of strategytest.
	for _, leases := range []bool{false, true} {
		t.Run(fmt.Sprint("leases ", leases), func(t *testing.T) {
			t.Parallel()
			newKeys(t, strategies.TokenBucket{}, leases)
		})
	}
	t.Run("another strategy", func(t *testing.T) {
		t.Parallel()
		newKeys(t, strategies.SlidingLog{}, false)
	})
}

func newKeys(t *testing.T, strategy strategies.Strategy, leases bool) {
	const callers, rounds, known = 32, 4, 16
	admin := newMigrated(t)
	config := pglimit.Config{Name: "api", Limit: inParts(strategy, pglimit.PerSecond(pglimit.MaxRate)), Timeout: time.Minute, Leases: pglimit.Leases{On: leases}}
	before := newLimiter(t, admin, strategy, config)
	for i := range known {
		if d, err := before.Allow(t.Context(), fmt.Sprint("known:", i)); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	made := func() int64 {
		return query[int64](t, admin, "select count(distinct key) from pglimit."+strategy.Name()+" where limiter = 'api' and key like 'new:%'")
	}
	clock := func() int64 { return query[int64](t, admin, "select pglimit.clock_ns()") }

	config.NewKeys.Limit = inParts(strategy, pglimit.PerSecond(20).WithBurst(10))
	var limiters []*pglimit.Limiter
	for _, pool := range twoPools(t, admin, 8) {
		limiters = append(limiters, newLimiter(t, pool, strategy, config))
	}
	began := clock()
	var work sync.WaitGroup
	for caller := range callers {
		limiter := limiters[caller%len(limiters)]
		work.Go(func() {
			for round := range rounds {
				for _, key := range []string{fmt.Sprintf("new:%d:%d", caller, round), fmt.Sprint("known:", (caller+round)%known)} {
					d, err := limiter.Allow(t.Context(), key)
					if err != nil || d.Source == pglimit.FromNewKeys && (key[0] == 'k' || d.Allowed || d.RetryAfter <= 0 && !d.Contended) {
						t.Errorf("%s: %+v, %v", key, d, err)
					}
				}
			}
		})
	}
	work.Wait()
	passed := time.Duration(clock() - began)
	limit := config.NewKeys.Limit
	most := limit.Burst + int64(passed/limit.Token())
	var through, refused int64
	for _, limiter := range limiters {
		s := limiter.Stats()
		through += s.NewKeys
		refused += s.Denied[pglimit.FromNewKeys]
	}
	if got := made(); got > most || got != through || got+refused != callers*rounds || got < limit.Burst {
		t.Errorf("%d rows of %d keys in %v, where %v makes at most %d; %d were let through, %d refused", got, callers*rounds, passed, limit, most, through, refused)
	}
}

// Rows that a sweep removes while their keys are asked for are there again or not: there are never more than before,
// and what Config.NewKeys grants.
func TestNewKeysBesideASweep(t *testing.T) {
	t.Parallel()
	const rows, callers = 3000, 64
	pool := newMigrated(t)
	if _, err := pool.Exec(t.Context(), `insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
		select 'old:' || i, 'api', 1000, 1000, 1 from generate_series(1, $1::int) i`, rows); err != nil {
		t.Fatal(err)
	}
	config := pglimit.Config{Name: "api", Limit: pglimit.PerHour(10), Timeout: time.Minute, NewKeys: pglimit.NewKeys{Limit: pglimit.Every(time.Hour).WithBurst(5)}}
	var limiters []*pglimit.Limiter
	for _, pool := range twoPools(t, pool, 8) {
		limiters = append(limiters, newLimiter(t, pool, strategies.TokenBucket{}, config))
	}
	var work sync.WaitGroup
	for caller := range callers {
		work.Go(func() {
			for i := rows - caller; i > 0; i -= callers { // towards the sweep, which begins with the first
				if _, err := limiters[caller%2].Allow(t.Context(), fmt.Sprint("old:", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for swept := (pglimit.Swept{}); !swept.Done; {
		var err error
		if swept, err = (strategies.TokenBucket{}).Sweep(t.Context(), on(pool), swept.Next, 40); err != nil {
			t.Fatal(err)
		}
	}
	work.Wait()
	served := limiters[0].Stats().Allowed[pglimit.FromDatabase] + limiters[1].Stats().Allowed[pglimit.FromDatabase]
	count := func(limiter string) int64 {
		return query[int64](t, pool, "select count(*) from pglimit.token_bucket where limiter = $1 and full_ns > 1000", limiter)
	}
	through := limiters[0].Stats().NewKeys + limiters[1].Stats().NewKeys
	if got := count("api"); got != served || through > 5 || count("api (new keys)") > 1 {
		t.Errorf("%d rows of %d keys that were served, %d of them new", got, served, through)
	}
	t.Logf("%d of %d keys had their rows when they were asked for, %d were let through", served-through, rows, through)
}
