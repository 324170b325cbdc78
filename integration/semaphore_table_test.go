package integration

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// setPlaces of all keys of the semaphore of the tests.
func setPlaces(t *testing.T, pool *pgxpool.Pool, n int64) {
	t.Helper()
	_, err := limits.New(pool).Set(t.Context(), limits.Rule{Limiter: "test", Action: pglimit.ActionPlaces, Limit: strconv.FormatInt(n, 10), Note: "test"})
	must(t, err)
}

// placesOf counts the places of a key that nobody holds.
func placesOf(t *testing.T, s *semaphore.Semaphore, key string) (n int) {
	t.Helper()
	for ; n < 20; n++ {
		p, ok, err := s.TryAcquire(t.Context(), key)
		must(t, err)
		if !ok {
			break
		}
		defer func() { must(t, p.Release(t.Context())) }()
	}
	return n
}

// The rule for the key holds, else the one for the longest prefix, else the one for all keys; what is disabled or has
// expired does not, and what is for limiters neither, not even what switches them off.
func TestPlacesFromTheTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, rule := range []string{
		"'test', '2'", "'test', '3', prefix => 'org:'", "'test', '4', prefix => 'org:ä:'", "'test', '5', key => 'org:ä:k', expires_at => '2100-01-01'",
		"'test', '7', key => 'org:off', enabled => false", "'test', '8', prefix => 'org:ä:off', enabled => false",
		"'other', '9', key => 'k'", "'other', '9', key => 'org:k'",
	} {
		execute(t, pool, "select pglimit.set_limit("+rule+", action => 'places', note => 'test')")
	}
	execute(t, pool, `insert into pglimit.limits (limiter, limit_text, key, prefix, action, expires_at, note) values
		('test', '9', 'org:over', null, 'places', clock_timestamp(), 'test'), ('test', '9', null, 'org:over:', 'places', clock_timestamp(), 'test')`)
	for _, rule := range []string{"'test', '9/1h', key => 'k'", "'test', '9/1h', action => 'observe'", "'test', action => 'off'", "null, action => 'off'", "'test', action => 'deny', prefix => 'org:'"} {
		execute(t, pool, "select pglimit.set_limit("+rule+", note => 'test')")
	}
	semaphores := map[string]*semaphore.Semaphore{"pgx": newSemaphore(t, pool, semaphore.Config{FromTable: true})}
	for _, driver := range sqlDrivers {
		semaphores[driver.name] = newSemaphore(t, openSQL(t, driver.open, databaseURL(pool), 4), semaphore.Config{FromTable: true})
	}
	for driver, s := range semaphores {
		for key, want := range map[string]int{
			"k": 2, "org": 2, "org:": 3, "org:k": 3, "org:off": 3, "org:over": 3, "org:over:k": 3, "org:ä:": 4, "org:ä:off:k": 4, "org:ä:k": 5, "org:ä:kk": 4,
		} {
			if n := placesOf(t, s, key); n != want {
				t.Errorf("%s: %s has %d places, want %d", driver, key, n, want)
			}
		}
	}
	if n := placesOf(t, newSemaphore(t, pool, semaphore.Config{Places: 6}), "k"); n != 6 {
		t.Errorf("%d places of a semaphore that does not read the table, want 6", n)
	}
	otherwise := newSemaphore(t, pool, semaphore.Config{Places: 6, FromTable: true})
	if n := placesOf(t, otherwise, "k"); n != 2 {
		t.Errorf("%d places, want those of the table, 2", n)
	}

	// It ends by itself, and what is deleted is gone.
	execute(t, pool, "update pglimit.limits set expires_at = clock_timestamp() + interval '200 ms' where key = 'org:ä:k'")
	until(t, "it happens", func() bool {
		return query[bool](t, pool, "select expires_at < clock_timestamp() from pglimit.limits where key = 'org:ä:k'")
	})
	if n := placesOf(t, otherwise, "org:ä:k"); n != 4 {
		t.Errorf("%d places, want those of the longest prefix, 4", n)
	}
	execute(t, pool, "delete from pglimit.limits where kind = 'places'")
	if n := placesOf(t, otherwise, "k"); n != 6 {
		t.Errorf("%d places where the table has none, want Places, 6", n)
	}
	for driver, s := range semaphores {
		_, try := s.TryAcquireIf(t.Context(), "k", 1, nil)
		_, wait := s.Acquire(t.Context(), "k")
		for _, err := range []error{try, wait} {
			if !errors.Is(err, semaphore.ErrNotSet) || !errors.Is(err, rate.ErrNothingTaken) || !strings.Contains(err.Error(), "pglimit limits set test --action places") {
				t.Errorf("%s: %v, want ErrNotSet", driver, err)
			}
		}
	}
	handler := httplimit.MaxInFlight(semaphores["pgx"], httplimit.InFlight{Key: httplimit.Constant("k")})(http.NotFoundHandler())
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" {
		t.Errorf("a request is answered with %d, %v", answer.Code, answer.Header())
	}
}

// In SQL, places are the table's if they are left out.
func TestSQLTakesThePlacesFromTheTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	_, err := pool.Exec(t.Context(), "select from pglimit.acquire('test', 'k')")
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "P0002" || !strings.Contains(pg.Hint, "pglimit.set_limit('test', '5', action => 'places'") {
		t.Errorf("%v, %+v", err, pg)
	}
	setPlaces(t, pool, 2)
	for _, test := range []struct {
		arguments string
		want      bool
	}{
		{"holder => 'a'", true}, {"holder => 'b', default_places => 1", true}, {"holder => 'c'", false}, {"holder => 'c', default_places => 9", false},
		{"holder => 'c', places => 3", true}, {"holder => 'a'", true},
	} {
		if got := query[bool](t, pool, "select acquired from pglimit.acquire('test', 'k', "+test.arguments+")"); got != test.want {
			t.Errorf("%s: %t", test.arguments, got)
		}
	}
	if !query[bool](t, pool, "select acquired from pglimit.acquire('other', 'k', default_places => 1)") || query[bool](t, pool, "select acquired from pglimit.acquire('other', 'k', default_places => 1)") {
		t.Error("without a rule default_places should hold")
	}
	for _, call := range []string{"first", "next"} {
		if !query[bool](t, pool, "select pglimit.release('none', 'k', token::text) from pglimit.acquire('none', 'k', 1)") {
			t.Errorf("the %s permit without a holder is not held by its token", call)
		}
	}
	for _, wrong := range []string{"places => 0", "default_places => 0", "default_places => 1000000000000001", "weight => 0", "weight => 1000000000000001", "places => 2, weight => 3", "holder => ''",
		"places => 9, weight => 2, holder => 'a'"} { // who has a permit of weight 1
		if _, err := pool.Exec(t.Context(), "select from pglimit.acquire('test', 'k', "+wrong+")"); sqlState(err) != "22023" {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// A holder who asks again has its permit, whatever has become of the rule.
func TestAHolderAsksAgainWithoutARule(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	setPlaces(t, pool, 2)
	const acquire = "select acquired from pglimit.acquire('test', 'k', weight => 2, holder => 'w')"
	held := query[bool](t, pool, acquire)
	setPlaces(t, pool, 1)
	lowered := query[bool](t, pool, acquire)
	execute(t, pool, "delete from pglimit.limits")
	if deleted := query[bool](t, pool, acquire); !held || !lowered || !deleted {
		t.Error(held, lowered, deleted)
	}
}

// What is missing is named. Who does not read the table needs no right to.
func TestPlacesOfATableThatCannotBeRead(t *testing.T) {
	t.Parallel()
	admin, pool := granted(t, migrations.ToDecide)
	setPlaces(t, admin, 1)
	s, own := newSemaphore(t, pool, semaphore.Config{Places: 1, FromTable: true}), newSemaphore(t, pool, semaphore.Config{Places: 1})
	must(t, acquire(t, s, "k").Release(t.Context())) // the grants are enough
	role := query[string](t, pool, "select current_user::text")
	for _, test := range []struct {
		name, before, after string
		want                error
		says                string
	}{
		{"no right", "revoke select on pglimit.limits from " + role, "grant select on pglimit.limits to " + role, pglimit.ErrPermission, "pglimit migrate grants"},
		{"row security", "alter table pglimit.limits enable row level security", "alter table pglimit.limits disable row level security", pglimit.ErrPermission, "row security"},
		{"no function", "alter function pglimit.limits_for rename to unlimited", "alter function pglimit.unlimited rename to limits_for", pglimit.ErrNotMigrated, "pglimit migrate up"},
	} {
		execute(t, admin, test.before)
		for range 2 { // without and with a row
			if _, err := s.Acquire(t.Context(), test.name); !errors.Is(err, test.want) || errors.Is(err, semaphore.ErrNotSet) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v", test.name, err)
			}
			must(t, acquire(t, own, test.name).Release(t.Context()))
		}
		execute(t, admin, test.after)
	}
}

// A limiter and a semaphore of one name have rules of their own, and neither heeds the other's.
func TestALimiterDoesNotHeedPlaces(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	setPlaces(t, pool, 3)
	read := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 10 * time.Millisecond})
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: hours.WithBurst(1700), Limits: read})
	allow := func(want int64, rules int) {
		t.Helper()
		version := query[int64](t, pool, "select max(id) from pglimit.limits_history")
		until(t, "the limits are read", func() bool { status := read.Status(); return status.Err == nil && status.Version == version })
		d, err := limiter.Allow(t.Context(), "k")
		if err != nil || d.Limit.Burst != want || read.Status().Rules != rules {
			t.Errorf("%+v, %v, %+v; want a burst of %d, and %d rules", d, err, read.Status(), want, rules)
		}
	}
	_, err := limiter.Allow(t.Context(), "first")
	must(t, err)
	allow(1700, 0)
	if names := read.Limiters(); len(names) != 0 {
		t.Errorf("limiters %q", names)
	}
	if _, err := pool.Exec(t.Context(), "select from pglimit.allow('test', 'k')"); sqlState(err) != "22023" {
		t.Errorf("a number of places is taken for a limit: %v", err)
	}
	execute(t, pool, "select pglimit.set_limit('test', '5/1h', note => 'test'), pglimit.set_limit('test', '4', key => 'k', action => 'places', note => 'test')")
	allow(5, 1)
	if remaining := query[int64](t, pool, "select remaining from pglimit.allow('test', 'k')"); remaining > 4 {
		t.Errorf("%d remain", remaining)
	}
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true})
	if k, others := placesOf(t, s, "k"), placesOf(t, s, "others"); k != 4 || others != 3 {
		t.Errorf("%d and %d places, want 4 and 3", k, others)
	}
	fixed := pglimit.FixedLimits(pglimit.LimitRule{Limiter: "test", Key: "k", Action: pglimit.ActionPlaces})
	if live, observed := fixed.Explain("test", "k", false); live != nil || observed != nil || fixed.Status().Rules != 0 {
		t.Errorf("%+v, %+v, %+v", live, observed, fixed.Status())
	}
}

// What package limits says and does with such a rule.
func TestPlacesInPackageLimits(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	table := limits.New(pool)
	for text, says := range map[string]string{ // what the table refuses: TestTheTableOfLimitsHasNothingButRules
		"1.5": "a whole number such as 5", "05": "a whole number such as 5", "1000000000000001": "from 1 to 1000000000000000", "": "places needs a number, such as 5",
	} {
		_, err := table.Set(t.Context(), limits.Rule{Limiter: "test", Action: pglimit.ActionPlaces, Limit: text, Note: "test"})
		if !errors.Is(err, limits.ErrNoRule) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	most := limits.Rule{Limiter: "test", Key: "k", Action: pglimit.ActionPlaces, Limit: "1000000000000000", Note: "the most"}
	_, err := table.Import(t.Context(), []limits.Rule{most, {Limiter: "test", Key: "k", Limit: "5/s", Note: "a rate"}, {Limiter: "test", Prefix: "l", Action: pglimit.ActionPlaces, Limit: "2", Note: "few"}}, limits.ImportConfig{})
	must(t, err)
	s := newSemaphore(t, pool, semaphore.Config{FromTable: true})
	p, err := s.AcquireN(t.Context(), "l", 2)
	must(t, err)
	t.Cleanup(func() { must(t, p.Release(context.Background())) })
	acquire(t, s, "k")
	list, err := table.List(t.Context())
	if must(t, err); len(list) != 3 || list[0].Limit != "5/s" || list[1].Limit != most.Limit || list[1].Kind() != "places" || list[2].Limit != "2" {
		t.Errorf("%+v", list)
	}
	if n, err := table.Reaches(t.Context(), limits.Rule{Limiter: "test", Action: pglimit.ActionPlaces}); err != nil || n != 0 {
		t.Errorf("a rule for all keys would hold for %d, %v", n, err)
	}
	if n, err := table.Reaches(t.Context(), limits.Rule{Limiter: "test", Prefix: "l", Action: pglimit.ActionPlaces}); err != nil || n != 1 {
		t.Errorf("the rule holds for %d keys, %v", n, err)
	}
	setPlaces(t, pool, 7)
	why, err := table.Explain(t.Context(), "test", "l")
	if must(t, err); len(why) != 2 || why[0].State != limits.Holds || why[0].Limit != "2" || why[0].Held != 2 || why[0].Bucket != nil || why[1].State != limits.Overruled || why[1].Held != 0 {
		t.Errorf("%+v", why)
	}
	execute(t, pool, "select pglimit.set_limit(null, action => 'off', note => 'test')")
	why, err = table.Explain(t.Context(), "test", "k")
	if must(t, err); len(why) != 4 || why[1].State != limits.Overruled || why[2].Action != pglimit.ActionPlaces || why[2].State != limits.Holds || why[2].Held != 1 {
		t.Errorf("%+v", why)
	}
	removed, err := table.Delete(t.Context(), most)
	if must(t, err); removed == nil || removed.Limit != most.Limit {
		t.Errorf("%+v", removed)
	}
	history, err := table.History(t.Context(), "test", "k", 1)
	if must(t, err); len(history) != 1 || history[0].Before == nil || history[0].Before.Action != pglimit.ActionPlaces || history[0].After != nil {
		t.Errorf("%+v", history)
	}
	for _, purpose := range []migrations.Purpose{migrations.ToDecide, migrations.ToRead, migrations.ToLimit} { // who holds places, too
		role := newRole(t, databaseURL(pool))
		text, err := migrations.Grants(role, purpose)
		must(t, err)
		execute(t, pool, text)
		if why, err := limits.New(migrationPool(t, databaseURL(pool), as(role))).Explain(t.Context(), "test", "l"); err != nil || why[1].Held != 2 {
			t.Errorf("%s: %+v, %v", purpose, why, err)
		}
	}
}
