package integration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func pausedUntil(t *testing.T, pool *pgxpool.Pool, key string) time.Time {
	t.Helper()
	return time.Unix(0, query[int64](t, pool, "select coalesce(max(paused_ns), 0) from pglimit.token_bucket where key = $1", key))
}

// Those who wait when a bucket is paused, in any process, are released behind the pause, at the rate of the limit;
// those of a group give back what the other buckets reserved. Who may not wait as long is told so.
func TestWaitersMoveBehindAPause(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const seldom = 3 * time.Second // in which the pause has to come
	limiters := fourLimiters(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: pglimit.Every(seldom)})
	ctx := t.Context()
	must(t, second(limiters[0].Allow(ctx, "api")))
	single, group, late := make(chan pglimit.Decision, 1), make(chan pglimit.Group, 1), make(chan error, 1)
	go func() {
		d, err := limiters[0].Do(ctx, pglimit.Request{Key: "api", Tokens: 1, MaxWait: time.Minute})
		if err != nil {
			t.Error(err)
		}
		single <- d
	}()
	until(t, "somebody waits", func() bool { return limiters[0].Stats().Asleep > 0 || t.Failed() })
	go func() {
		g, err := limiters[1].DoAll(ctx, pglimit.Request{Key: "api", Tokens: 1, MaxWait: time.Minute}, pglimit.Request{Key: "user", Tokens: 1, MaxWait: time.Minute, Limit: pglimit.PerHour(5)})
		if err != nil {
			t.Error(err)
		}
		group <- g
	}()
	go func() {
		late <- second(limiters[2].Do(ctx, pglimit.Request{Key: "api", Tokens: 1, MaxWait: 5 * seldom / 2}))
	}() // due in 9 s
	until(t, "somebody waits", func() bool { return limiters[1].Stats().Asleep > 0 || t.Failed() })
	must(t, limiters[3].Pause(ctx, "api", time.Now().Add(2*seldom)))
	paused := pausedUntil(t, pool, "api")
	first, g := <-single, <-group
	dues := []time.Time{first.At.Add(first.Delay), g.Decisions[0].At.Add(g.Delay)}
	if dues[1].Before(dues[0]) {
		dues[0], dues[1] = dues[1], dues[0]
	}
	if dues[0].Before(paused) || dues[1].Sub(dues[0]) < seldom {
		t.Errorf("due at %v, paused until %v: a token comes in %v", dues, paused, seldom)
	}
	if err := <-late; !errors.Is(err, pglimit.ErrWaitTooLong) {
		t.Errorf("who may not wait as long: %v", err)
	}
	if owed := query[int64](t, pool, "select tokens_owed from pglimit.buckets where key = 'user'"); owed != 1 {
		t.Errorf("the group took %d tokens of the other bucket", owed)
	}
}

// A pause lasts until the leases of other processes have ended, and nobody takes a new one meanwhile.
func TestAPauseWaitsForLeases(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	config := pglimit.Config{Name: "test", Limit: pglimit.PerHour(100_000), Leases: pglimit.Leases{On: true, TTL: 3 * time.Second}}
	limiters := fourLimiters(t, pool, strategies.TokenBucket{}, config)
	ctx := t.Context()
	for limiters[0].Stats().Allowed[pglimit.FromLease] == 0 {
		must(t, second(limiters[0].Allow(ctx, "api")))
	}
	must(t, limiters[1].Pause(ctx, "api", time.Now().Add(time.Hour)))
	if d, err := limiters[0].Allow(ctx, "api"); err != nil || d.Allowed {
		t.Errorf("granted in the pause: %+v, %v", d, err)
	}
	must(t, limiters[2].Reset(ctx, "api"))
	if d, err := limiters[3].Allow(ctx, "api"); err != nil || !d.Allowed {
		t.Errorf("denied after the reset: %+v, %v", d, err)
	}
}

// The sweep does not end a pause, and of what is nonsense nothing is paused.
func TestAPauseStays(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	ctx := t.Context()
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "test", Limit: pglimit.PerDay(5).Fixed()})
	must(t, limiter.Pause(ctx, "window", time.Now().Add(72*time.Hour)))
	execute(t, pool, "update pglimit.token_bucket set full_ns = full_ns - 2 * pglimit.window_step_ns(), until_ns = until_ns - 2 * pglimit.window_step_ns()")
	if swept, err := (strategies.TokenBucket{}).Sweep(ctx, on(pool), 0, 1000); err != nil || swept.Removed != 0 {
		t.Errorf("%+v, %v", swept, err)
	}
	if until := query[time.Time](t, pool, "select paused_until from pglimit.buckets"); until.Sub(pausedUntil(t, pool, "window")).Abs() > time.Microsecond {
		t.Errorf("the view says %v", until)
	}
	must(t, limiter.Pause(ctx, "past", time.Now().Add(-time.Hour)))
	var field *pglimit.RequestError
	for name, err := range map[string]error{
		"a key with a NUL": limiter.Pause(ctx, "a\x00", time.Now().Add(time.Hour)),
		"200 years":        limiter.Pause(ctx, "k", time.Now().Add(200*365*24*time.Hour)),
	} {
		if !errors.As(err, &field) {
			t.Errorf("%s: %v", name, err)
		}
	}
	upsert := newLimiter(t, pool, strategies.Upsert{}, pglimit.Config{Name: "test", Limit: pglimit.PerSecond(1)})
	if err := upsert.Pause(ctx, "k", time.Now().Add(time.Hour)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("upsert: %v", err)
	}
	if n := query[int](t, pool, "select count(*) from pglimit.token_bucket"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// A pause in SQL; what was used stays used, and the first token behind it is the only one.
func TestPauseInSQL(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	pause := func(key, until string) error {
		return second(pool.Exec(t.Context(), "select pglimit.pause('api', $1, now() + $2::text::interval)", key, until))
	}
	allow := func(key, limit string, n int) string {
		return query[string](t, pool, "select allowed || ' ' || remaining || ' ' || date_trunc('minute', retry_after + interval '30 s') from pglimit.allow('api', $1, $2, n => $3)", key, limit, n)
	}
	must(t, pause("k", "1 hour"))
	if d := allow("k", "10/s burst 100000", 1); d != "false 0 01:00:00" {
		t.Errorf("granted in a pause: %s", d)
	}
	allow("year", "1000/year UTC", 900)
	allow("hour", "1000/1h", 1000)
	for _, key := range []string{"year", "hour", "idle"} {
		must(t, pause(key, "10 milliseconds"))
	}
	execute(t, pool, "select pg_sleep(0.02)")
	for _, c := range []struct{ key, limit, want string }{{"year", "1000/year UTC", "true 99"}, {"hour", "1000/1h", "false 0"}, {"idle", "1/1h burst 5", "true 0"}} {
		if d := allow(c.key, c.limit, 1); !strings.HasPrefix(d, c.want) {
			t.Errorf("behind a pause, %s: %s, want %s", c.key, d, c.want)
		}
	}
	for what, err := range map[string]error{"ages": pause("k", "11 years"), "no key": pause("", "1 hour"), "null": pause("k", "infinity")} {
		if err == nil || what != "null" && sqlState(err) != "22023" {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, pause("past", "-1 hour"))
	if keys := strings.Join(texts(t, pool, "select key from pglimit.buckets where paused_until > now()"), " "); keys != "k" {
		t.Errorf("paused: %s", keys)
	}
}

func cliPauses(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	c.run(t, "pause", "k", "--for", "1h").exits(t, 0).prints(t, `paused: nobody takes from "k" before `, `(limiter "cli")`)
	c.run(t, "allow", "k", "--limit", "10/s").exits(t, 1)
	c.run(t, "pause", "k", "--for", "1m", "--output", "json").exits(t, 0).prints(t, `"limiter":"cli","key":"k","paused_until":"`, `"leased_ms":0`)
	if !query[bool](t, pool, "select paused_until > now() + interval '59 min' from pglimit.buckets") {
		t.Error("a shorter pause has ended the longer one")
	}
	c.run(t, "reset", "k").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "10/s").exits(t, 0)
	c.run(t, "pause", "k", "--until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)).exits(t, 0)
	c.run(t, "pause").fails(t, "KEY")
	c.run(t, "pause", "k").fails(t, "--for", "--until")
	c.run(t, "pause", "k", "--for", "1h", "--until", "2030-01-01T00:00:00Z").fails(t, "either")
	c.run(t, "pause", "k", "--until", "tomorrow").fails(t, "--until", "2026-")
	c.run(t, "pause", "k", "--for", "-1s").fails(t, "--for")
	c.run(t, "pause", "past", "--until", "2020-01-01T00:00:00Z").fails(t, "--until", "has passed")
	c.run(t, "pause", "k", "--for", "100000h").fails(t, "ten years")
	c.run(t, "pause", "").fails(t, "KEY is empty")
}
