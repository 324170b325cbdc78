package integration

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// answered is a decision of "pglimit serve" about one token, and how long it took.
type answered struct {
	at      time.Time
	limit   pglimit.Limit
	granted int64
	took    time.Duration
}

// askUntil POSTs until stop, and adds what is answered.
func askUntil(t *testing.T, client *http.Client, url string, stop *atomic.Bool, add func(answered)) {
	t.Helper()
	for !stop.Load() {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/allow", strings.NewReader(`{"limiter":"api","key":"k"}`))
		must(t, err)
		request.Header.Set("Content-Type", "application/json")
		began := time.Now()
		response, err := client.Do(request)
		if err != nil {
			t.Error(err)
			return
		}
		var d struct {
			At      time.Time `json:"at"`
			Limit   string    `json:"limit"`
			Granted int64     `json:"granted"`
		}
		err = json.NewDecoder(response.Body).Decode(&d)
		_ = response.Body.Close()
		limit, unread := pglimit.ParseLimit(d.Limit)
		if err != nil || unread != nil {
			t.Errorf("%s: %+v, %v, %v", response.Status, d, err, unread)
			return
		}
		add(answered{d.At, limit, d.Granted, time.Since(began)})
		<-time.After(5 * time.Millisecond)
	}
}

// watchReads makes pglimit.limits_since note who asked, when, and which version he had: that of the rules by which his process decides.
const watchReads = `
	alter function pglimit.limits_since rename to limits_answer;
	create table reads (who text not null default current_setting('application_name'), at timestamptz not null default clock_timestamp(), known bigint not null);
	create function pglimit.limits_since(known text) returns text language sql volatile as $$
		insert into public.reads (known) values (coalesce((nullif(known, '')::jsonb ->> 0)::bigint, 0));
		select pglimit.limits_answer(known)
	$$`

// 64 callers of three processes, while the limit of a key changes at random, each time to one that was not there before. No call
// fails, and in no span of time is more granted than the loosest limit grants that held in it or in the two seconds before; or, if
// this machine was too busy for a process to ask for the rules in time, that the process had not replaced yet.
//
// Not parallel: what contends here is the callers, not other tests. PGLIMIT_TEST_HISTORIES is for how many seconds it runs.
func TestLimitsChangeInThreeProcesses(t *testing.T) {
	pool := newMigrated(t)
	execute(t, pool, watchReads)
	type version struct {
		id       int64
		from, to time.Time // to: when it was replaced
		limit    pglimit.Limit
	}
	var versions []version // of what holds for the key
	var own *pglimit.Limit // of the key; else that of all holds
	var base pglimit.Limit
	clock := func() time.Time { return query[time.Time](t, pool, "select clock_timestamp()") }
	change := func(limit *pglimit.Limit, sql string, args ...any) {
		from := clock()
		execute(t, pool, sql, args...)
		to, holds := clock(), base
		if own = limit; own != nil {
			holds = *own
		}
		if n := len(versions); n > 0 {
			versions[n-1].to = to
		}
		versions = append(versions, version{query[int64](t, pool, "select max(id) from pglimit.limits_history"), from, time.Time{}, holds})
	}
	setAll := func(limit pglimit.Limit) {
		base = limit
		change(own, "select pglimit.set_limit('api', $1, note => 'change')", limit.String())
	}
	setOwn := func(limit pglimit.Limit) {
		change(&limit, "select pglimit.set_limit('api', $1, key => 'k', note => 'change')", limit.String())
	}
	setAll(pglimit.PerSecond(100))

	c := cli{builtCLI(t), nil}
	file := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(file, []byte("limiters: {api: {limit: 1/1h, leases: true, lease_ttl: 100ms, timeout: 10s}}"), 0o600)) // which never holds
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	var callers sync.WaitGroup
	var stop atomic.Bool
	var mu sync.Mutex
	var all []answered
	var urls []string
	for i := range 3 {
		c.env = []string{fmt.Sprintf("DATABASE_URL=%s&application_name=process%d", databaseURL(pool), i)}
		_, url, _ := c.serves(t, "--config", file, "--no-cleanup")
		urls = append(urls, url)
	}
	for i := range 64 {
		callers.Go(func() {
			askUntil(t, client, urls[i%3], &stop, func(a answered) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, a)
			})
		})
	}
	long := max(2, replayHistories()-2)
	tooFew := func() bool { // on a busy machine they take longer
		mu.Lock()
		defer mu.Unlock()
		return len(all) < 1000 || len(versions) < 40
	}
	for i, end := 0, time.Now().Add(time.Duration(long)*time.Second); time.Now().Before(end) || tooFew(); i++ {
		limit := pglimit.PerSecond(20 + rand.Int64N(200)).WithBurst(int64(20 + i)) // each burst once
		switch {
		case i%5 == 0 && own != nil:
			change(nil, "select pglimit.delete_limit('api', 'k', note => 'no boost')")
		case i%3 == 0:
			setOwn(limit)
		default:
			setAll(limit)
		}
		<-time.After(time.Duration(rand.Int64N(int64(40 * time.Millisecond))))
	}
	setOwn(pglimit.PerSecond(10).WithBurst(10))
	last := versions[len(versions)-1]
	asked := func(since time.Time) (processes int) { // by it, since then
		return query[int](t, pool, "select count(distinct who) from reads where known >= $1 and at > $2", last.id, since)
	}
	until(t, "all have the last limit", func() bool { return asked(last.from) == 3 })
	seen := clock()
	until(t, "all have decided by it for a second", func() bool { return asked(seen.Add(time.Second)) == 3 })
	stop.Store(true)
	callers.Wait()

	var longest time.Duration
	var history audit.History
	for _, a := range all {
		longest = max(longest, a.took)
		history.Add(audit.Event{At: a.at.UnixNano(), Granted: a.granted})
	}
	held := make([]audit.Held, len(versions))
	replaced := make(map[pglimit.Limit]time.Time)
	for i, v := range versions {
		held[i] = audit.Held{Limit: v.limit, From: v.from.UnixNano(), To: math.MaxInt64}
		if v.to.IsZero() {
			continue
		}
		replaced[v.limit] = v.to
		late := query[time.Time](t, pool, "select max(at) from (select min(at) as at from reads where known > $1 group by who) had_another", v.id)
		held[i].To = max(v.to.Add(2*time.Second).UnixNano(), late.Add(longest).UnixNano()) // longest: calls were under way
	}
	var stale []time.Duration
	for _, a := range all {
		at := a.at.UnixNano()
		if !slices.ContainsFunc(held, func(h audit.Held) bool { return h.Limit == a.limit && h.From <= at && at <= h.To }) {
			t.Fatalf("%+v: no such limit then", a)
		}
		if to := replaced[a.limit]; !to.IsZero() {
			stale = append(stale, max(0, a.at.Sub(to)))
		}
	}
	slices.Sort(stale)
	t.Logf("%d decisions, %d changes; after the limit was replaced: p99 %v, the last %v", len(all), len(held), stale[len(stale)*99/100], stale[len(stale)-1])
	if len(held) < 20 || len(all) < 1000 {
		t.Error("too few")
	}
	// A grant of a lease is dated too late by a round trip at most, in which tokens of the limit flow back.
	tolerance := 1 + int64(longest/last.limit.Token())
	if over := history.CheckHeld(held...); over.Tokens > tolerance {
		t.Error(over)
	}
}
