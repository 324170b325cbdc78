package integration

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// outcomes are what calls said: one line each, without times that differ from run to run.
type outcomes []string

func (o *outcomes) add(what string, outcome any, err error) {
	if err != nil {
		outcome = "ERROR " + oneLine(err)
	}
	*o = append(*o, fmt.Sprintf("%s: %v", what, outcome))
}

// said is a decision without its date. Its limit is by the hour, and the test may take minutes.
func said(d pglimit.Decision) string {
	return fmt.Sprintf("allowed %t, granted %d, remaining %d, retry after %v, reset after %v, delay %v, blocked %v",
		d.Allowed, d.Granted, d.Remaining, d.RetryAfter.Round(10*time.Minute), d.ResetAfter.Round(10*time.Minute), d.Delay.Round(time.Minute), d.BlockedFor.Round(time.Minute))
}

// strategyOutcomes asks a strategy for everything that it can do. The name keeps runs apart.
func strategyOutcomes(ctx context.Context, name string, session rate.Session, strategy strategies.Strategy) (o outcomes) {
	name += " " + strategy.Name()
	limit := pglimit.Every(time.Hour)
	if strategy.Check(&rate.Request{Limit: limit.WithBurst(5)}) == nil {
		limit.Burst = 5
	}
	ask := func(key string, tokens int64) rate.Request {
		return rate.Request{Limiter: name, Key: key, Limit: limit, Tokens: min(tokens, limit.Burst), Unit: 1}
	}
	all := func(what string, err error, decisions ...pglimit.Decision) {
		var texts []string
		for _, d := range decisions {
			texts = append(texts, said(d))
		}
		o.add(name+": "+what, strings.Join(texts, "; "), err)
	}
	take := func(what string, requests ...rate.Request) (first pglimit.Decision) {
		decisions, err := strategy.Take(ctx, session, requests)
		all(what, err, decisions...)
		if len(decisions) > 0 {
			first = decisions[0]
		}
		return first
	}
	granted := take("take", ask("k", 2))
	take("take again", ask("k", 4))
	take("peek", ask("k", 0))
	take("several", ask("k", 5), ask("l", 1), ask("m", 0), ask("it's a 'key' \\ with \"all\" {NULL,$1}", 3))
	take("several again", ask("l", 5), ask("k", 1), ask("NULL", 1))
	foreign := ask("ключ é", 1)
	foreign.Limiter += " foreign"
	take("not ASCII", foreign)
	take("several, not ASCII", ask("l", 1), foreign)
	var misread int64
	err := session.Row(ctx, "select count(*) from pglimit."+strategy.Name()+" where limiter = $1::text and encode(convert_to(key, 'UTF8'), 'hex') <> $2::text",
		[]any{foreign.Limiter, hex.EncodeToString([]byte(foreign.Key))}, &misread)
	o.add(name+": keys that were misread", misread, err)
	_, _ = strategy.(pglimit.AllResetter).ResetAll(ctx, session, foreign.Limiter)
	back := ask("k", granted.Granted)
	o.add(name+": refund", "done", strategy.GiveBack(ctx, session, []pglimit.Refund{{Request: back, At: granted.At}}))
	take("after the refund", ask("k", 0))
	if bucket, is := strategy.(strategies.TokenBucket); is {
		whole := func(key string, tokens int64) rate.Request {
			r := ask(key, tokens)
			r.Unit = max(r.Tokens, 1)
			return r
		}
		take("groups", grouped([]rate.Request{whole("g", 2), whole("h", 5)}, []rate.Request{whole("g", 1), whole("h", 1)}, []rate.Request{whole("g", 3)})...)
		ahead := grouped([]rate.Request{whole("g", 3), whole("h", 1)})
		ahead[0].Ahead, ahead[1].Ahead = 3*time.Hour, 3*time.Hour
		take("a group that reserves", ahead...)
		once, block, peek := whole("once", 2), whole("block", 5), whole("block", 0)
		once.ID, once.IDTTL = "an ID", time.Hour
		block.Block, peek.Block = &hourly, &hourly
		for range 2 {
			take("once", once)
			take("or block", block)
		}
		take("blocked", peek)
		lease := pglimit.LeaseRequest{Limiter: name, Key: "leased", Limit: limit, Tokens: 4, Share: 1, TTL: time.Hour}
		for range 2 {
			lease.Settle, err = bucket.Lease(ctx, session, lease)
			lease.Spent = min(1, lease.Settle.Tokens)
			o.add(name+": lease", fmt.Sprint(lease.Settle.Tokens, " until ", lease.Settle.Until.Sub(lease.Settle.At).Round(time.Minute), " ", said(lease.Settle.Left)), err)
		}
	}
	r := ask("ahead", 5)
	r.Ahead = 3 * time.Hour
	if strategy.Check(&r) == nil {
		take("reserve", r)
		r.Tokens = 2
		take("reserve again", r)
	}
	o.add(name+": reset", "done", strategy.Reset(ctx, session, name, "l"))
	take("after the reset", ask("l", 0))
	removed, err := strategy.(pglimit.AllResetter).ResetAll(ctx, session, name)
	o.add(name+": reset of all", removed, err)
	swept, err := strategy.Sweep(ctx, session, 0, 1_000_000)
	o.add(name+": sweep", fmt.Sprint(swept.Removed, swept.Done), err)
	return o
}

// limitTexts are forms of a limit, good and bad.
var limitTexts = []string{
	"1/90m", "2/5400s burst 3", "  10/1h   burst  5 ", "1/day", "5/2weeks", "1000/hour", "1/500000ms", "1/H", "1/ſ", "1\u00a0/h", "1/h\tburst 5", "1/day from 15 fixed",
	"1/1.5h", "1/-1h", `1\/h`, `1/1\h`, "many/1s", "1/1s burst x", "", "2/1ns",
}

// limitNumbers are limits as numbers.
var limitNumbers = []string{
	"tokens => 3, period => '1 day 2:03:30.0', burst => 4", "tokens => 1, period => 'P1DT1H'", "tokens => 1, period => '-1:00'", "tokens => 1, period => '1 month'", "tokens => 1, period => null",
}

// sqlOutcomes calls the functions for other languages, and reads the views.
func sqlOutcomes(ctx context.Context, db database, name string) (o outcomes) {
	call := func(key int, limit, sql string, args ...any) {
		for _, function := range []string{"allow", "allow", "peek"} {
			var outcome string
			err := db.QueryRow(ctx, fmt.Sprintf(`
				select concat_ws(' ', allowed, granted, remaining, round(extract(epoch from retry_after) / 60.0), round(extract(epoch from reset_after) / 60.0),
					at between now() - interval '1 minute' and now() + interval '1 minute')
				from pglimit.%s('%s', '%d', %s)`, function, name, key, sql), args...).Scan(&outcome)
			if state := sqlState(err); state != "" {
				outcome, err = "SQLSTATE "+state, nil // the text quotes intervals as the session writes them
			}
			o.add(name+": "+function+" "+limit, outcome, err)
		}
	}
	for i, text := range limitTexts {
		call(i, text, "limit_text => $1", text)
	}
	for i, numbers := range limitNumbers {
		call(len(limitTexts)+i, numbers, numbers)
	}
	for _, sql := range []string{
		"select pglimit.reset('" + name + "', '0')::pg_catalog.text",
		"select string_agg(concat_ws(' ', strategy, limiter, key, tokens_leased, seconds_per_token, extract(epoch from full_at - last_taken_at)::bigint), ',' order by key collate \"C\") from pglimit.buckets where limiter = '" + name + "'",
		"select string_agg(concat_ws(' ', strategy, limiter, key, denials, level, blocked_until > now()), ',' order by key collate \"C\") from pglimit.blocks",
		"select string_agg(concat_ws(' ', limiter, key, available, full_at > last_taken_at), ',' order by key collate \"C\") from pglimit.ranges",
	} {
		var outcome *string
		err := db.QueryRow(ctx, sql).Scan(&outcome)
		if outcome == nil {
			outcome = new(string)
		}
		o.add(sql, *outcome, err)
	}
	return o
}

// jobOutcomes runs the cleanup and its lock, and reads what is migrated and how the tables are kept.
func jobOutcomes(ctx context.Context, t *testing.T, pool *pgxpool.Pool, name string) (o outcomes) {
	t.Helper()
	locker, err := cleanup.NewLocker(pool, cleanup.LockerConfig{Interval: time.Hour})
	must(t, err)
	for range 2 {
		lock, err := locker.Lock(ctx, name)
		if err == nil {
			err = lock.Unlock(ctx)
		}
		o.add(name+": lock", "locked and unlocked", err)
	}
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{Logger: slog.New(slog.DiscardHandler), BatchSize: 10_000, Pause: -1})
	must(t, err)
	report, err := cleaner.RunOnce(ctx)
	o.add(name+": cleanup", fmt.Sprint(report.Removed, len(report.Strategies)), err)
	status, err := migrations.Status(ctx, pool)
	for i := range status {
		status[i].AppliedAt = status[i].AppliedAt.Add(time.Since(status[i].AppliedAt).Round(time.Hour)).Truncate(24 * time.Hour) // today
	}
	o.add(name+": status", status, err)
	storage, err := migrations.ReadStorage(ctx, pool)
	o.add(name+": storage", storage, err)
	o.add(name+": up", "done", migrations.Up(ctx, pool))
	var said strings.Builder
	registry := prometheus.NewRegistry()
	must(t, registry.Register(promlimit.NewDatabase(pool, slog.New(slog.NewTextHandler(&said, nil)))))
	families, err := registry.Gather()
	for tries := 0; tries < 5 && strings.Contains(said.String(), "deadline exceeded"); tries++ { // on a busy machine
		said.Reset()
		families, err = registry.Gather()
	}
	if said.Len() > 0 {
		err = errors.New(said.String())
	}
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = fmt.Sprint(family.GetName(), len(family.GetMetric()))
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "pglimit_database_locks") }) // as many as there are
	o.add(name+": numbers for Prometheus", names, err)
	return o
}

// times, dates and durations in what a command prints.
var times = regexp.MustCompile(`\d{4}-\d\d-\d\d[ T][0-9:.]+(Z| UTC)?|[0-9.]+(ms|µs|s|m|h)(\d+(ms|s|m))*\b`)

// cliOutcomes runs the commands.
func cliOutcomes(t *testing.T, c cli) (o outcomes) {
	t.Helper()
	for _, command := range []string{
		"allow k --limit 5/1h --tokens 4", "allow k --limit 5/1h --tokens 2", "allow k --limit 5/1h --limit 9/24h --tokens 2", "allow ключ --limit 1/1h --id é", "allow b --limit 1/1h --block-after 1",
		"peek k --limit 5/1h", "reset k", "allow k --limit 1/1h --strategy exclusion_range --wait 0s", "reset --all --limiter cli", "cleanup --once",
		"storage unlogged", "migrate status", "migrate down --to 1", "migrate down --to 0 --yes", "migrate status --check", "migrate up", "migrate up", "storage", "allow k --limit 1/1h",
	} {
		args := slices.DeleteFunc(strings.Split(command, " "), func(s string) bool { return s == "" })
		r := c.run(t, args...)
		for tries := 0; tries < 5 && strings.Contains(r.stderr, "nothing was taken: ask again"); tries++ { // as it says: a busy machine was too slow
			r = c.run(t, args...)
		}
		text := strings.Join(strings.Fields(times.ReplaceAllString(r.stdout+r.stderr, "TIME")), " ")
		o.add("pglimit "+command, fmt.Sprint("code ", r.code, ", ", text), nil)
	}
	return o
}
