package integration

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func cliAnswersByExitCode(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	c.run(t, "allow", "k", "--limit", "5/1h", "--tokens", "4").exits(t, 0).prints(t, "allowed: 1 of 5 left, full again in 48m\n")
	c.run(t, "allow", "k", "--limit", "5/1h", "--tokens", "2").exits(t, 1).prints(t, "denied: retry after 1")
	c.run(t, "peek", "k", "--limit", "5/1h").exits(t, 0).prints(t, "1 of 5 left, full again in 4")
	c.run(t, "allow", "k", "--limit", "5/1h").exits(t, 0)
	c.run(t, "peek", "k", "--limit", "5/1h").exits(t, 0).prints(t, "0 of 5 left, the next in 1")
	c.run(t, "reset", "k").exits(t, 0).prints(t, "full")
	c.run(t, "allow", "k", "--limit", "5/1h burst 7", "--tokens", "7", "--durability", "durable").exits(t, 0)

	quiet := c.run(t, "allow", "k", "--limit", "5/1h", "--quiet").exits(t, 1)
	if quiet.stdout+quiet.stderr != "" {
		t.Errorf("--quiet prints %q and %q", quiet.stdout, quiet.stderr)
	}
	// Another name and another strategy are other buckets.
	c.run(t, "allow", "k", "--limit", "5/1h", "--limiter", "other").exits(t, 0)
	for _, strategy := range []string{"upsert", "for_update_nowait", "exclusion_range"} {
		c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", strategy).exits(t, 0)
		c.run(t, "allow", "k", "--limit", "1/1h", "--strategy", strategy).exits(t, 1)
	}
}

// A durable grant waits for the disk; a relaxed one, which is the default, does not ask for that. The trigger runs as
// the last of what a commit does before it waits. (That each strategy heeds it is a test of strategytest.)
func cliHeedsDurability(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	execute(t, pool, `create table public.seen (key text, setting text)`)
	execute(t, pool, `create function public.see() returns trigger language plpgsql as
		$$ begin insert into public.seen values (new.key, current_setting('synchronous_commit')); return null; end $$`)
	execute(t, pool, `create constraint trigger see after insert or update on pglimit.token_bucket
		deferrable initially deferred for each row execute function public.see()`)
	c.run(t, "allow", "default", "--limit", "1/1h").exits(t, 0)
	for _, durability := range []string{"relaxed", "durable"} {
		c.run(t, "allow", durability, "--limit", "1/1h", "--durability", durability).exits(t, 0)
	}
	if got := texts(t, pool, `select distinct key || ' ' || setting from public.seen order by 1`); !slices.Equal(got, []string{"default off", "durable on", "relaxed off"}) {
		t.Errorf("committed with synchronous_commit: %q", got)
	}
}

func cliPrintsJSON(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	type decision struct {
		Allowed      *bool     `json:"allowed"`
		Granted      int64     `json:"granted"`
		Remaining    int64     `json:"remaining"`
		RetryAfterMS int64     `json:"retry_after_ms"`
		ResetAfterMS int64     `json:"reset_after_ms"`
		At           time.Time `json:"at"`
	}
	ask := func(code int, args ...string) (d decision) {
		t.Helper()
		r := c.run(t, append(args, "--output", "json")...).exits(t, code)
		must(t, json.Unmarshal([]byte(r.stdout), &d))
		if d.Allowed == nil || d.At.IsZero() {
			t.Errorf("%q prints %s", args, r.stdout)
		}
		return d
	}
	d := ask(0, "allow", "k", "--limit", "1/1h burst 3", "--tokens", "2")
	if !*d.Allowed || d.Granted != 2 || d.Remaining != 1 || d.RetryAfterMS != 3_600_000 || d.ResetAfterMS != 2*3_600_000 {
		t.Errorf("two of three taken: %+v", d)
	}
	d = ask(1, "allow", "k", "--limit", "1/1h burst 3", "--tokens", "2")
	if *d.Allowed || d.Granted != 0 || d.Remaining != 1 || d.RetryAfterMS <= 3_500_000 || d.RetryAfterMS > 3_600_000 {
		t.Errorf("two more wanted: %+v", d)
	}
	if d = ask(0, "peek", "k", "--limit", "1/1h burst 3"); !*d.Allowed || d.Granted != 0 || d.Remaining != 1 {
		t.Errorf("peeked: %+v", d)
	}

	var status struct {
		Version    int64 `json:"version"`
		Migrations []struct {
			Name      string     `json:"name"`
			Applied   bool       `json:"applied"`
			AppliedAt *time.Time `json:"applied_at"`
		} `json:"migrations"`
	}
	must(t, json.Unmarshal([]byte(c.run(t, "migrate", "status", "--output", "json").exits(t, 0).stdout), &status))
	if status.Version == 0 || len(status.Migrations) == 0 || status.Migrations[0].Name != "tables" || status.Migrations[0].AppliedAt == nil {
		t.Errorf("status: %+v", status)
	}
}

// Whoever waits gets the next token when it is due, and whoever would have to wait longer than that is denied at once
// and takes nothing. (That callers stand in line is TestWaitersAreReleasedAtTheRate.)
func cliWaitsInLine(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	for range 2 {
		c.run(t, "allow", "soon", "--limit", "1/500ms", "--wait", "1m").exits(t, 0).prints(t, "allowed", ": 0 of 1 left")
	}
	c.run(t, "allow", "slow", "--limit", "1/1h").exits(t, 0)
	late := c.run(t, "allow", "slow", "--limit", "1/1h", "--wait", "2s").exits(t, 1)
	if !regexp.MustCompile(`denied: the tokens come in (1h|59m[0-9.]+s), later than --wait 2s allows`).MatchString(late.stdout) {
		t.Errorf("%q", late.stdout)
	}
	c.run(t, "peek", "slow", "--limit", "1/1h").exits(t, 0).prints(t, "the next in ")
	c.run(t, "allow", "k", "--limit", "1/h", "--strategy", "for_update_nowait", "--wait", "2s").exits(t, 2)
	c.run(t, "allow", "k", "--limit", "1/h", "--wait", "-2s").exits(t, 2)
	c.run(t, "allow", "k", "--limit", "10/month", "--wait", "2s").fails(t, "--wait", "10/month", "leave --wait out, and ask again after the time that the answer says")
}

// Several limits: of all of them, or of none.
func cliTakesAllOrNothing(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	both := []string{"allow", "k", "--limit", "2/1h", "--limit", "5/24h burst 3"}
	c.run(t, both...).exits(t, 0).prints(t, "allowed\n  2/1h: 1 of 2 left, full again in 30m\n  5/24h burst 3: 2 of 3 left")
	c.run(t, both...).exits(t, 0)
	r := c.run(t, append(both, "--output", "json")...).exits(t, 1)
	var got struct {
		Allowed      bool  `json:"allowed"`
		RetryAfterMS int64 `json:"retry_after_ms"`
		Decisions    []struct {
			Limiter, Limit string
			Allowed        bool
			Remaining      int64
		} `json:"decisions"`
	}
	must(t, json.Unmarshal([]byte(r.stdout), &got))
	if got.Allowed || got.RetryAfterMS < 1_700_000 || len(got.Decisions) != 2 || got.Decisions[0].Allowed || !got.Decisions[1].Allowed || got.Decisions[1].Remaining != 1 || got.Decisions[1].Limiter != "cli 5/24h burst 3" {
		t.Errorf("%s", r.stdout)
	}
	c.run(t, both...).exits(t, 1).prints(t, "denied by 2/1h: retry after ")
	c.run(t, "peek", "k", "--limiter", "cli 5/24h burst 3", "--limit", "5/24h burst 3").exits(t, 0).prints(t, "1 of 3 left")
	c.run(t, "reset", "k", "--limiter", "cli 2/1h").exits(t, 0)
	c.run(t, both...).exits(t, 0)

	// --tokens are taken of each.
	two := []string{"allow", "two", "--limit", "2/1h", "--limit", "5/24h burst 3", "--tokens", "2"}
	c.run(t, two...).exits(t, 0).prints(t, "allowed\n  2/1h: 0 of 2 left", "\n  5/24h burst 3: 1 of 3 left")
	c.run(t, two...).exits(t, 1).prints(t, "denied by ")

	c.run(t, append(both, "--id", "run-7")...).fails(t, "--id with one --limit only, and here are 2")
	c.run(t, "allow", "k", "--limit", "2/1h", "--limit", "2/60m").exits(t, 2)
	c.run(t, append(both, "--wait", "3s")...).exits(t, 2)
	if r := c.run(t, append(both, "--strategy", "upsert")...).exits(t, 2); !strings.HasSuffix(r.stderr, "(token_bucket can)\n") {
		t.Errorf("it says %s", r.stderr)
	}
	c.run(t, "peek", "k", "--limit", "2/1h", "--limit", "5/24h").exits(t, 2)
}

// The same ID is charged once, and gets its first answer.
func cliChargesAnIDOnce(t *testing.T, c cli) {
	c, _ = c.onMigrated(t)
	job := []string{"allow", "k", "--limit", "3/1h", "--tokens", "2", "--id", "run-7"}
	first := c.run(t, append(job, "--id-ttl", "1h")...).exits(t, 0).stdout
	if again := c.run(t, append(job, "--id-ttl", "1h")...).exits(t, 0).stdout; again != first {
		t.Errorf("%q, and then %q", first, again)
	}
	c.run(t, "peek", "k", "--limit", "3/1h").exits(t, 0).prints(t, "1 of 3 left")
	r := c.run(t, "allow", "k", "--limit", "3/1h", "--id", "run-7").exits(t, 2)
	if !strings.Contains(r.stderr, "--id ") {
		t.Errorf("another request with that ID: %s", r.stderr)
	}
	c.run(t, "allow", "k", "--limit", "3/1h", "--id", "").exits(t, 2)
	c.run(t, "allow", "k", "--limit", "3/1h", "--id-ttl", "1h").exits(t, 2)
	c.run(t, append(job, "--id-ttl", "-1h")...).exits(t, 2)
}

// Peek shows the block of a service with the same limiter, and reset ends it.
func cliShowsBlocks(t *testing.T, c cli) {
	c, pool := c.onMigrated(t)
	for range 2 {
		takeOrBlock(t, pool, "k", hours, 1, hourly) // its limiter is test
	}
	c.run(t, "peek", "k", "--limiter", "test", "--limit", "1/1h").exits(t, 0).prints(t, "0 of 1 left, blocked for ")
	c.run(t, "peek", "k", "--limiter", "test", "--limit", "1/1h", "--output", "json").exits(t, 0).prints(t, `"blocked":true,"blocked_for_ms":3`)
	c.run(t, "reset", "k", "--limiter", "test").exits(t, 0)
	c.run(t, "peek", "k", "--limiter", "test", "--limit", "1/1h").exits(t, 0).prints(t, "1 of 1 left\n")
}
