package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// takeKeys takes the one token of so many keys, of so few in a call that a busy machine makes it in the 100 ms that it
// has.
func takeKeys(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy, limit pglimit.Limit, keys int) {
	t.Helper()
	const each = 100
	for from := 0; from < keys; from += each {
		var requests []rate.Request
		for i := from; i < min(keys, from+each); i++ {
			requests = append(requests, rate.Request{Limiter: "test", Key: "key:" + strconv.Itoa(i), Limit: limit, Tokens: 1, Unit: 1})
		}
		takeAll(t, pool, s, requests...)
	}
}

func rowsIn(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy) int64 {
	t.Helper()
	return query[int64](t, pool, `select count(*) from pglimit.`+s.Name())
}

// A row that somebody changes does not keep the others from being reset, and is itself
// reset in the end. Where transactions are serializable by default, Postgres undoes the step that waited for it.
func TestResetAllWaitsForLockedRowsLast(t *testing.T) {
	t.Parallel()
	limit := pglimit.Every(time.Hour).WithBurst(1)
	const keys = 700 // of two batches
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy) {
		isolations := []string{"read committed", "serializable"}
		if s.Name() != "token_bucket" {
			isolations = isolations[:1] // a step that is undone is repeated by what all strategies share
		}
		for _, isolation := range isolations {
			takeKeys(t, pool, s, limit, keys)
			holder := begin(t, pool)
			execute(t, holder, `update pglimit.`+s.Name()+` set key = key where key in ('key:0', 'key:600')`)
			var removed int64
			whileBlocked(t, pool, func() {
				var err error
				isolated := newPool(t, with(databaseURL(pool), "default_transaction_isolation", isolation), 1)
				removed, err = s.(pglimit.AllResetter).ResetAll(t.Context(), on(isolated), "test")
				if err != nil {
					t.Errorf("%s: %v", isolation, err)
				}
			}, func() {
				if n := rowsIn(t, pool, s); n != 2 {
					t.Errorf("while two rows are changed, %d are left", n)
				}
				commit(t, holder)
			})
			if n := rowsIn(t, pool, s); n != 0 || removed != keys {
				t.Errorf("%s: %d rows removed of %d, %d left", isolation, removed, keys, n)
			}
		}
	})
}

// The role's timeouts do not end a reset of all: it waits for a row that is held for longer than they are.
func TestResetAllTakesAsLongAsItsContextLetsIt(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy) {
		takeKeys(t, pool, s, pglimit.Every(time.Hour), 100)
		hurried := newPool(t, databaseURL(pool), 1)
		_, err := s.(pglimit.AllResetter).ResetAll(t.Context(), on(hurried), "nobody") // prepares the statements
		must(t, err)
		execute(t, hurried, "set statement_timeout = '2s'; set lock_timeout = '1s'")
		holder := begin(t, pool)
		execute(t, holder, `select from pglimit.`+s.Name()+` where key = 'key:7' for update`)
		whileBlocked(t, pool, func() {
			if removed, err := s.(pglimit.AllResetter).ResetAll(t.Context(), on(hurried), "test"); removed != 100 || err != nil {
				t.Errorf("%d removed, %v", removed, err)
			}
		}, func() {
			execute(t, holder, "select pg_sleep(2.2)")
			commit(t, holder)
		})
	})
}

// What was done before an error stays done, and the error does not say otherwise.
func TestResetAllThatIsCanceledSaysWhatItDid(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy) {
		takeKeys(t, pool, s, pglimit.Every(time.Hour), 100)
		holder := begin(t, pool)
		execute(t, holder, `select from pglimit.`+s.Name()+` where key = 'key:7' for update`)
		var removed int64
		var err error
		whileBlocked(t, pool, func() { removed, err = s.(pglimit.AllResetter).ResetAll(t.Context(), on(pool), "test") }, func() {
			execute(t, pool, "select pg_cancel_backend(pid) from pg_locks join pg_stat_activity using (pid) where datname = current_database() and not granted")
		})
		if removed != 99 || sqlState(err) != "57014" || errors.Is(err, pglimit.ErrNothingTaken) {
			t.Errorf("%d removed, %v", removed, err)
		}
		execute(t, holder, "lock table pglimit."+s.Name()+" in access exclusive mode")
		_, err = s.Sweep(t.Context(), on(newPool(t, with(databaseURL(pool), "statement_timeout", "50"), 1)), 0, 100)
		if sqlState(err) != "57014" || errors.Is(err, pglimit.ErrNothingTaken) {
			t.Errorf("a sweep: %v", err)
		}
	})
}

// stepping runs a function before each of its round trips.
type stepping struct {
	pglimit.Session
	before func(number int)
	number int
}

func (s *stepping) Pipeline(ctx context.Context, statements ...rate.Statement) (int, error) {
	s.number++
	s.before(s.number)
	return s.Session.Pipeline(ctx, statements...)
}

// A row that moves to a page that was walked already is reset all the same.
func TestResetAllMissesNoRowThatMoves(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	takeKeys(t, pool, s, pglimit.Every(time.Hour), 4000)
	execute(t, pool, `delete from pglimit.token_bucket where ctid < '(8,0)'`)
	execute(t, pool, `vacuum pglimit.token_bucket`) // room at the beginning
	page := func() int {
		return query[int](t, pool, `select split_part(trim('(' from ctid::text), ',', 1)::int from pglimit.token_bucket where key = 'key:3999'`)
	}
	last := page()
	_, err := s.ResetAll(t.Context(), &stepping{Session: postgres.OnPool(pool), before: func(number int) {
		if number == 2 {
			// As an update does that finds no room in its page.
			execute(t, pool, `with gone as (delete from pglimit.token_bucket where key = 'key:3999' returning *)
				insert into pglimit.token_bucket select * from gone`)
			if now := page(); now > 8 || last < 30 {
				t.Fatalf("the row was in page %d and moved to %d: the test shows nothing", last, now)
			}
		}
	}}, "test")
	must(t, err)
	if left := texts(t, pool, `select key || ' in page ' || ctid::text from pglimit.token_bucket`); len(left) > 0 {
		t.Errorf("%d rows are left, the first: %s", len(left), left[0])
	}
}

// Callers who take at the same time get what is right at every moment: never more than
// a burst at once for each reset, which here is once.
func TestResetAllBesideTakes(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, s strategies.Strategy) {
		const keys = 400
		limit := pglimit.Every(time.Hour)
		takeKeys(t, pool, s, limit, keys)
		granted := make([]int, keys)
		var mu sync.Mutex
		ctx, stop := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for caller := range 4 {
			callers.Go(func() {
				for i := caller; ctx.Err() == nil; i++ {
					if d, err := tryTake(t, pool, s, "key:"+strconv.Itoa(i%keys), limit); err != nil {
						t.Error(err)
						return
					} else if d.Allowed {
						mu.Lock()
						granted[i%keys]++
						mu.Unlock()
					}
				}
			})
		}
		_, err := s.(pglimit.AllResetter).ResetAll(t.Context(), on(pool), "test")
		stop()
		callers.Wait()
		must(t, err)
		for i, n := range granted {
			// The row may go once in the walk, with what was taken before, and once at the end.
			if n > 2 {
				t.Errorf("key %d was granted %d times", i, n)
			}
		}
	})
}

// A limiter that resets all forgets what it remembers, and gives its leases back first:
// nothing of them can be spent beside the full bucket.
func TestLimiterResetsAll(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.Every(time.Hour).WithBurst(100)
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name: "test", Limit: limit, Leases: pglimit.Leases{On: true, TTL: 10 * time.Second}, Memory: pglimit.Memory{TTL: time.Hour}, Timeout: time.Minute,
	})
	must(t, err)
	defer func() { must(t, limiter.Close(context.WithoutCancel(t.Context()))) }()
	allow := func(key string, n int64) bool {
		t.Helper()
		d, err := limiter.AllowN(t.Context(), key, n)
		must(t, err)
		return d.Allowed
	}
	for limiter.Stats().Allowed[pglimit.FromLease] == 0 {
		allow("leased", 1)
	}
	allow("used", 100)
	first, second := allow("used", 1), allow("used", 1)
	if first || second || limiter.Stats().Denied[pglimit.FromMemory] == 0 {
		t.Error("the denial is not remembered")
	}
	removed, err := limiter.ResetAll(t.Context())
	if err != nil || removed != 2 {
		t.Errorf("%d rows removed, %v", removed, err)
	}
	for _, key := range []string{"leased", "used"} {
		var n int64
		for ; n < 200 && allow(key, 1); n++ {
		}
		if n != 100 {
			t.Errorf("%s: %d granted after the reset, not 100", key, n)
		}
	}
}

func cliResetsAll(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	for _, key := range []string{"a", "b", "c"} {
		c.run(t, "allow", key, "--limit", "1/1h", "--limiter", "api").exits(t, 0)
	}
	c.run(t, "allow", "a", "--limit", "1/1h").exits(t, 0) // of the limiter cli
	c.run(t, "reset", "--all", "--limiter", "api").exits(t, 0).prints(t, `every bucket of limiter "api" is full (3 rows removed)`)
	c.run(t, "allow", "b", "--limit", "1/1h", "--limiter", "api").exits(t, 0)
	c.run(t, "allow", "a", "--limit", "1/1h").exits(t, 1)
	var out struct {
		Limiter, Strategy string
		Removed           int64
	}
	must(t, json.Unmarshal([]byte(c.run(t, "reset", "--all", "--limiter", "api", "--output", "json").exits(t, 0).stdout), &out))
	if fmt.Sprint(out) != "{api token_bucket 1}" {
		t.Errorf("%+v", out)
	}
	c.run(t, "reset", "--all", "--limiter", "nobody", "--strategy", "exclusion_range").exits(t, 0).prints(t, "0 rows")

	holder := begin(t, pool)
	execute(t, holder, `select from pglimit.token_bucket where limiter = 'cli' for update`)
	c.run(t, "allow", "z", "--limit", "1/1h").exits(t, 0)
	c.run(t, "reset", "--all", "--limiter", "cli", "--timeout", "6s").fails(t, "--timeout 6s", `1 row of limiter "cli" removed, and others may be left`)

	c.run(t, "reset").fails(t, "needs a KEY", "--all")
	c.run(t, "reset", "--all").fails(t, "--all needs --limiter")
	c.run(t, "reset", "k", "--all", "--limiter", "api").fails(t, "either a KEY or --all")
	c.run(t, "reset", "--all", "--limiter", "").fails(t, "--limiter is empty")
}
