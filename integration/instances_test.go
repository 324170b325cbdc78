package integration

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// playedInstance is an instance that the test plays.
type playedInstance struct {
	id      string
	heard   int64
	live    int  // by the last answer that it heard
	counted bool // by that

	alone bool // it was cut off alone, and has not heard since
}

// call as the instance does. The answer may be lost, or the call.
func (r *playedInstance) call(t *testing.T, pool *pgxpool.Pool, sent, heard bool) {
	t.Helper()
	var answer struct {
		Turn      int64
		Instances map[string][2]any
	}
	if sent {
		must(t, json.Unmarshal([]byte(query[string](t, pool, "select pglimit.instance_lives(array['api'], array[$1::text], $2)", r.id, r.heard)), &answer))
	}
	if r.heard = answer.Turn; !sent || !heard {
		r.heard = 0
		r.alone = r.alone || sent && query[bool](t, pool, "select joined = turn from pglimit.instances where id = $1", r.id)
		return
	}
	r.alone = false
	of := answer.Instances[r.id]
	r.live, r.counted = int(of[0].(float64)), of[1].(bool)
}

// How soon instances are noticed, and what an outage does not change.
func TestInstancesComeAndGo(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1)
	execute(t, pool, replayClock)
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	a, b, c := &playedInstance{id: "a"}, &playedInstance{id: "b"}, &playedInstance{id: "c"}
	after := func(passed time.Duration, want string, calling ...*playedInstance) {
		t.Helper()
		now = now.Add(passed)
		clockIs(t, pool, now.UnixNano())
		got := ""
		for _, r := range calling {
			r.call(t, pool, true, true)
			got += fmt.Sprint(r.id, r.live, r.counted, " ")
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	after(time.Second, "a1 true b2 false ", a, b) // a has not heard of b
	after(time.Second, "a2 true b2 false ", a, b) // a has not said that it has
	after(time.Second, "a2 true b2 true c3 false ", a, b, c)
	after(time.Second, "a3 true b3 true c3 false ", a, b, c)
	after(time.Second, "b3 true a3 true c3 true ", b, a, c)
	after(time.Hour, "c3 true ", c) // an outage
	after(-2*time.Hour, "c3 true ", c)
	after(time.Second, "b3 true c3 true ", b, c) // a has crashed
	after(time.Second, "b3 true ", b)
	after(4*time.Second, "c2 true b2 true ", c, b)
	execute(t, pool, "delete from pglimit.instances where id = 'b'")
	after(time.Second, "c1 true ", c)
	a.call(t, pool, true, false)
	after(time.Second, "a2 false c2 true ", a, c)
	after(time.Second, "c2 true a2 true ", c, a)
	after(time.Second, "b3 false c3 true ", b, c)
	for range 3 { // a's answers are lost: it does not know b
		a.call(t, pool, true, false)
		after(time.Second, "c3 true b3 false ", c, b)
	}
	if rows := query[int](t, pool, "select count(*) from pglimit.instances"); rows != 3 {
		t.Errorf("%d rows", rows)
	}
}

// In random histories, all instances that are counted take 1/live each, whenever Postgres goes away: together it is
// never more than the limit. But for those that were cut off alone for longer than their rows are live.
func TestSharesOfLiveInstancesAreNeverMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1)
	execute(t, pool, replayClock)
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	pass := func(by time.Duration) {
		now = now.Add(by)
		clockIs(t, pool, now.UnixNano())
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 7))
	var all []*playedInstance
	shared, most := 0, 0
	loss := 10                                                     // of answers, in percent
	for step := 0; step < 400 || shared < 50 || most < 4; step++ { // until chance had them share it all
		if step%100 == 0 {
			loss = []int{10, 60}[step/100%2]
		}
		pass(time.Duration(random.Int64N(int64(time.Second))))
		switch n := random.IntN(100); {
		case n < 8 && len(all) < 6 || len(all) == 0:
			all = append(all, &playedInstance{id: fmt.Sprint("i", step)})
			all[len(all)-1].call(t, pool, random.IntN(10) > 0, random.IntN(10) > 0)
		case n < 11: // it crashes
			i := random.IntN(len(all))
			all = slices.Delete(all, i, i+1)
		case n < 14: // it is closed
			i := random.IntN(len(all))
			execute(t, pool, "delete from pglimit.instances where limiter = 'api' and id = $1", all[i].id)
			all = slices.Delete(all, i, i+1)
		case n < 16: // an outage
			pass(time.Duration(random.Int64N(int64(time.Minute))))
		case n < 17: // the clock steps
			pass(time.Duration(random.Int64N(int64(20*time.Minute))) - 10*time.Minute)
		default:
			for range 1 + random.IntN(6) {
				all[random.IntN(len(all))].call(t, pool, random.IntN(8) > 0, random.IntN(100) >= loss)
			}
		}
		live := texts(t, pool, "select id from pglimit.instances where until_ns > (select max(until_ns) - 5000000000 from pglimit.instances)")
		share, sharing := 0.0, 0
		for _, r := range all {
			if r.alone = r.alone || !slices.Contains(live, r.id); r.counted && !r.alone {
				share, sharing = share+1/float64(r.live), sharing+1
			}
		}
		if share > 1+1e-9 {
			t.Fatalf("seed %d, step %d: %d instances have %v of the limit: %+v", seed, step, sharing, share, states(all))
		}
		if share > 0.99 {
			shared++
		}
		most = max(most, sharing)
		if step == 40_000 {
			t.Fatalf("seed %d: all of the limit was shared in %d steps, by at most %d", seed, shared, most)
		}
	}
}

func states(all []*playedInstance) (states []playedInstance) {
	for _, r := range all {
		states = append(states, *r)
	}
	return states
}

// Three Limiters of a service count each other, and decide by a third of the limit when Postgres is away. One that
// could not be counted before denies, and one without the right to be counted takes the share for the number that it
// was given.
func TestFailLocalCountsInstances(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	type process struct {
		*pglimit.Limiter
		pool *pgxpool.Pool
		log  *lines
	}
	start := func(url string) process {
		p := process{pool: newPool(t, url, 2), log: new(lines)}
		rules := pglimit.LimitsFrom(p.pool, pglimit.LimitsConfig{Every: 10 * time.Millisecond, CountInstances: true, Logger: slog.New(slog.NewTextHandler(p.log, nil))})
		p.Limiter = newLimiter(t, p.pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerHour(60), Limits: rules, OnError: pglimit.FailLocal(10)})
		must(t, rules.Await(t.Context()))
		return p
	}
	counts := func(want int64, all ...process) {
		t.Helper()
		until(t, fmt.Sprint("all count ", want), func() bool {
			return !slices.ContainsFunc(all, func(p process) bool { return p.Stats().LiveInstances != want })
		})
	}
	granted := func(p process) (n int) {
		t.Helper()
		for range 70 {
			d, err := p.Allow(t.Context(), "k")
			must(t, err)
			if d.Source != pglimit.FromFallback {
				t.Errorf("%+v", d)
			}
			n += int(d.Granted)
		}
		return n
	}
	a, b, c, d := start(databaseURL(admin)), start(databaseURL(admin)), start(databaseURL(admin)), start(databaseURL(admin))
	counts(4, a, b, c, d)
	must(t, d.Close(t.Context()))
	if rows := query[int](t, admin, "select count(*) from pglimit.instances"); rows != 3 {
		t.Errorf("%d rows after one of four is closed", rows)
	}
	counts(3, a, b, c)

	role := newRole(t, databaseURL(admin))
	grants, err := migrations.Grants(role, migrations.ToDecide)
	must(t, err)
	execute(t, admin, grants+"; revoke insert on pglimit.instances from "+role)
	denied := start(with(databaseURL(admin), "role", role))
	until(t, "it says so", func() bool { return strings.Contains(strings.Join(denied.log.all(), ""), "cannot be counted") })
	<-soon(t, 50*time.Millisecond).Done()
	if n := strings.Count(strings.Join(denied.log.all(), ""), "cannot be counted"); n != 1 {
		t.Errorf("said %d times: %q", n, denied.log.all())
	}
	for _, p := range []process{denied, a, b, c} {
		p.pool.Close()
	}
	if n := granted(denied); n != 6 {
		t.Errorf("the instance that may not be counted has granted %d", n)
	}
	for i, p := range []process{a, b, c} {
		if n := granted(p); n != 20 {
			t.Errorf("instance %d has granted %d", i, n)
		}
	}
}

// Calls come one after another, whatever their limiters are, each limiter has its own instances, and a transaction that
// would not see those who called just before is refused.
func TestTurnsOfInstances(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const call = "select pglimit.instance_lives($1::text[], $2::text[], 0)"
	type answer struct {
		Turn      int64
		Instances map[string][2]any
	}
	read := func(text string) (a answer) {
		t.Helper()
		must(t, json.Unmarshal([]byte(text), &a))
		return a
	}
	first := begin(t, pool)
	var text string
	must(t, first.QueryRow(t.Context(), call, []string{"api", "web"}, []string{"a", "w"}).Scan(&text))
	before, second := read(text), make(chan string)
	go func() { second <- query[string](t, pool, call+" -- the second", []string{"web"}, []string{"v"}) }()
	until(t, "the second waits", func() bool {
		return query[int](t, pool, "select count(*) from pg_stat_activity where query like '% -- the second' and wait_event_type = 'Lock' and pid <> pg_backend_pid()") == 1
	})
	must(t, first.Commit(t.Context()))
	after := read(<-second)
	if after.Turn <= before.Turn {
		t.Errorf("turn %d and then %d", before.Turn, after.Turn)
	}
	if before.Instances["a"][0] != 1.0 || before.Instances["w"][0] != 1.0 || after.Instances["v"][0] != 2.0 {
		t.Errorf("%v and then %v", before, after)
	}
	for _, level := range []string{"repeatable read", "serializable"} {
		err := pool.QueryRow(t.Context(), call, []string{"api"}, []string{"a"}).Scan(&text)
		must(t, err)
		isolated := newPool(t, with(databaseURL(pool), "default_transaction_isolation", level), 1)
		if err := isolated.QueryRow(t.Context(), call, []string{"api"}, []string{"b"}).Scan(&text); sqlState(err) != "0A000" {
			t.Errorf("%s: %v", level, err)
		}
	}
}

// Who sets a rule hears how many will follow: the live Limiters of that name that read the table, in all processes.
func TestWhoFollowsTheLimits(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	table := limits.New(admin)
	start := func(url, name string, config pglimit.LimitsConfig) *pglimit.Limiter {
		pool := newPool(t, url, 2)
		return newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: name, Limit: pglimit.PerHour(60), Limits: pglimit.LimitsFrom(pool, config)})
	}
	follow := func(limiter string, want limits.Followers) {
		t.Helper()
		var got limits.Followers
		until(t, fmt.Sprintf("%q is followed by %+v", limiter, want), func() bool {
			var err error
			got, err = table.Followers(t.Context(), limiter)
			must(t, err)
			return got == want
		})
	}
	follow("api", limits.Followers{})
	url := databaseURL(admin)
	newLimiter(t, admin, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerHour(60)}) // without the table
	a, b := start(url, "api", pglimit.LimitsConfig{}), start(url, "api", pglimit.LimitsConfig{})
	counting := start(url, "api", pglimit.LimitsConfig{CountInstances: true})
	start(url, "login", pglimit.LimitsConfig{})
	start(url, "(table)", pglimit.LimitsConfig{}) // as "pglimit serve" does
	follow("api", limits.Followers{Instances: 3, Servers: 1})
	follow("login", limits.Followers{Instances: 1, Servers: 1})
	follow("", limits.Followers{Instances: 4, Servers: 1})
	_, err := table.Set(t.Context(), limits.Rule{Limiter: "apii", Action: pglimit.ActionDeny, Note: "a slip"})
	must(t, err)
	follow("apii", limits.Followers{Servers: 1, Near: "api"})
	follow("LOGIN", limits.Followers{Servers: 1})
	follow("logni", limits.Followers{Servers: 1})
	follow("loggin", limits.Followers{Servers: 1, Near: "login"})
	until(t, "it counts itself only", func() bool { return counting.Stats().LiveInstances == 1 })

	must(t, a.Close(t.Context()))
	if rows := query[int](t, admin, "select count(*) from pglimit.instances where limiter = 'api'"); rows != 2 {
		t.Errorf("%d rows after one of three is closed", rows)
	}
	must(t, counting.Close(t.Context()))
	execute(t, admin, "update pglimit.instances set until_ns = until_ns - 20000000000 where limiter = 'api'") // as if b had been silent
	follow("api", limits.Followers{Instances: 1, Servers: 1})
	execute(t, admin, "update pglimit.instances set until_ns = until_ns - 11000000000 where limiter = 'api'")
	follow("api", limits.Followers{Instances: 1, Servers: 1}) // it says so again
	must(t, b.Close(t.Context()))

	// A right to write the table of instances is not needed to decide.
	role := newRole(t, url)
	grants, err := migrations.Grants(role, migrations.ToDecide)
	must(t, err)
	execute(t, admin, grants+"; revoke insert, delete on pglimit.instances from "+role)
	var log lines
	denied := start(with(url, "role", role), "api", pglimit.LimitsConfig{Every: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if d, err := denied.Allow(t.Context(), "k"); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	const warning = `level=WARN msg="pglimit: this instance cannot say that it follows`
	says := func() int { return strings.Count(strings.Join(log.all(), ""), warning) }
	until(t, "it says so", func() bool { return says() > 0 })
	must(t, denied.Close(t.Context()))
	if says() != 1 {
		t.Errorf("%q", log.all())
	}
	follow("api", limits.Followers{Servers: 1, Near: "apii"})
}
