package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// granted is a migrated database in which nobody but the owner has any right, and a
// pool of a role that was then given those for the purpose.
func granted(t *testing.T, purpose migrations.Purpose) (admin, pool *pgxpool.Pool) {
	t.Helper()
	admin = newMigrated(t)
	url := databaseURL(admin)
	role := newRole(t, url)
	execute(t, admin, `revoke execute on all functions in schema pglimit from public`)
	text, err := migrations.Grants(role, purpose)
	must(t, err)
	execute(t, admin, text)
	return admin, migrationPool(t, url, as(role))
}

// forgedHistory would let the trigger, which acts as the owner, write what never was.
const forgedHistory = `create temp table limits (like pglimit.limits);
	alter table limits alter enabled drop not null, alter action drop not null, alter changed_by drop not null, alter changed_at drop not null, alter temporary drop not null;
	create trigger forge after insert on limits for each row execute function pglimit.limit_changed();
	insert into limits (id, kind, note) values (1, '', '')`

// everyAct is what anybody could want to do with the schema, each as a function that
// fails if the role may not.
func everyAct(pool *pgxpool.Pool) map[string]func(context.Context) error {
	limit := pglimit.Every(time.Hour)
	acts := map[string]func(context.Context) error{
		"sweep on schedule": func(ctx context.Context) error {
			done := make(chan error, 1)
			cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{
				Logger: slog.New(slog.DiscardHandler), OnRun: func(r cleanup.Report) { done <- r.Err },
			})
			if err != nil {
				return err
			}
			if err := cleaner.Start(ctx); err != nil {
				return err
			}
			err = <-done
			return errors.Join(err, cleaner.Stop(ctx))
		},
		"read the views": func(ctx context.Context) error {
			_, buckets := pool.Exec(ctx, `select strategy, limiter, key, burst, tokens_left from pglimit.buckets union all select null, limiter, key, null, null from pglimit.ranges`)
			_, blocks := pool.Exec(ctx, `select * from pglimit.blocks`)
			return errors.Join(buckets, blocks)
		},
	}
	for name, sql := range map[string]string{
		"read the version":  `select from pglimit.goose_db_version`,
		"write the version": `insert into pglimit.goose_db_version (version_id, is_applied) values (99, true)`,
		"forget a version":  `delete from pglimit.goose_db_version`,
		"read the schedule": `select from pglimit.schedule`,
		"truncate":          `truncate pglimit.token_bucket`,
		"alter":             `alter table pglimit.token_bucket set unlogged`,
		"create":            `create table pglimit.mine (a int)`,
		"replace a view":    `drop view pglimit.buckets`,
	} {
		acts[name] = func(ctx context.Context) error {
			_, err := pool.Exec(ctx, sql)
			return err
		}
	}
	for _, s := range strategies.All() {
		ask := rate.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1}
		take := func(ctx context.Context, requests ...rate.Request) error {
			_, err := taken(pool, func() ([]pglimit.Decision, error) { return s.Take(ctx, on(pool), requests) })
			return err
		}
		acts["take by "+s.Name()] = func(ctx context.Context) error {
			other := ask
			other.Key = "l"
			for _, requests := range [][]rate.Request{{ask}, {ask}, {ask, other}} { // a grant, a denial, several
				if err := take(ctx, requests...); err != nil {
					return err
				}
			}
			refund := pglimit.Refund{Request: ask, At: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
			if err := s.GiveBack(ctx, on(pool), []pglimit.Refund{refund}); err != nil {
				return err
			}
			return s.Reset(ctx, on(pool), "test", "k")
		}
		acts["peek by "+s.Name()] = func(ctx context.Context) error {
			look := ask
			look.Tokens = 0
			return take(ctx, look)
		}
	}
	for name, sql := range map[string]string{
		"allow in SQL": `select from pglimit.allow('test', 'sql', '1/1h')`,
		"peek in SQL":  `select from pglimit.peek('test', 'sql', '1/1h')`,
		"be counted":   `select pglimit.instance_lives(array['test'], array['me'], 0); delete from pglimit.instances where id = 'me'`,
		"acquire":      `select pglimit.acquire('test', 'sql', 1000), pglimit.acquire('test', 'sql', default_places => 1000), pglimit.renew('test', 'sql', 'me'), pglimit.release('test', 'sql', 'me')`,
		"holders":      `select from pglimit.holders`,
		"top":          `select from pglimit.top`,
		"count for the top": `insert into pglimit.top_keys values ('test', 'me', '{k}', '{1}', '{0}', 1) on conflict (limiter, slot) do update set keys = '{l}';
			delete from pglimit.top_keys where slot = 'me'`,
		"reset in SQL": `select pglimit.reset('test', 'sql')`,
		"pause in SQL": `select pglimit.pause('test', 'sql', now() + interval '1 hour')`,
	} {
		acts[name] = func(ctx context.Context) error {
			_, err := pool.Exec(ctx, sql)
			return err
		}
	}
	for name, sql := range map[string]string{
		"read limits":      `select pglimit.limits_since(''), count(*) from pglimit.limits_history`,
		"read who and why": `select by, note, before from pglimit.limits_history`,
		"set a limit":      `select pglimit.set_limit('test', '1/1h', key => 'l', note => 'why')`,
		"change limits": `
			insert into pglimit.limits (limiter, action, note) values ('test', 'deny', 'why');
			update pglimit.limits set note = 'because' where limiter = 'test';
			select pglimit.enable_limit('test', false, note => 'why'), pglimit.set_limits('[]', prune => true, note => 'why'), pglimit.delete_limit('test', note => 'why')`,
		"explain limits":          `select from pglimit.explain_limit('test', 'l')`,
		"count buckets":           `select pglimit.limit_reaches('test'), pglimit.limit_reaches('test', kind => 'places')`,
		"write the history":       `insert into pglimit.limits_history (at, role, by, note) values (now(), '', '', '')`,
		"change the history":      `update pglimit.limits_history set note = ''`,
		"delete the history":      `delete from pglimit.limits_history`,
		"truncate the history":    `truncate pglimit.limits_history`,
		"truncate the limits":     `truncate pglimit.limits`,
		"do without the triggers": `alter table pglimit.limits disable trigger all`,
		"act as a replica":        `set session_replication_role = replica`,
		"forge history":           forgedHistory,
		"lock the history": `create temp table locks (a int);
			create trigger forge before insert on locks for each statement execute function pglimit.limit_changed();
			insert into locks values (1)`,
	} {
		acts[name] = func(ctx context.Context) error {
			_, err := pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			return err
		}
	}
	acts["lease"] = func(ctx context.Context) error {
		_, err := strategies.TokenBucket{}.Lease(ctx, on(pool), pglimit.LeaseRequest{
			Limiter: "test", Key: "m", Limit: limit.WithBurst(10), Tokens: 1, Share: 1, TTL: time.Second,
		})
		return err
	}
	for name, tokens := range map[string]int64{"take or block": 1, "peek at a block": 0} {
		acts[name] = func(ctx context.Context) error {
			_, err := strategies.TokenBucket{}.Take(ctx, on(pool), []rate.Request{{Limiter: "test", Key: "n", Limit: limit, Tokens: tokens, Unit: 1, Block: &hourly}})
			return err
		}
	}
	acts["take once"] = func(ctx context.Context) error {
		_, err := strategies.TokenBucket{}.Take(ctx, on(pool), []rate.Request{{Limiter: "test", Key: "o", Limit: limit, Tokens: 1, Unit: 1, ID: "id", IDTTL: time.Hour}})
		return err
	}
	return acts
}

// With the grants a role can do what they are for, also where functions were taken
// from PUBLIC, and gets 42501 for everything else.
func TestGrantsAreEnoughAndNoMore(t *testing.T) {
	t.Parallel()
	takes, peeks := []string{"allow in SQL", "reset in SQL", "pause in SQL"}, []string{"peek in SQL", "holders", "top"}
	for _, s := range strategies.All() {
		takes = append(takes, "take by "+s.Name())
		peeks = append(peeks, "peek by "+s.Name())
	}
	decide := slices.Concat(takes, peeks, []string{"acquire", "be counted", "count for the top", "lease", "take once", "take or block", "peek at a block", "read limits", "explain limits"})
	for purpose, can := range map[migrations.Purpose][]string{
		migrations.ToDecide:         decide,
		migrations.ToDecideAndSweep: slices.Concat(decide, []string{"sweep on schedule", "read the schedule"}),
		migrations.ToRead:           slices.Concat(peeks, []string{"read the views", "peek at a block", "read limits", "explain limits", "read who and why", "count buckets"}),
		migrations.ToLimit:          slices.Concat(peeks, []string{"read the views", "peek at a block", "read limits", "explain limits", "read who and why", "count buckets", "set a limit", "change limits"}),
	} {
		t.Run(string(purpose), func(t *testing.T) {
			t.Parallel()
			_, pool := granted(t, purpose)
			for name, act := range everyAct(pool) {
				err := act(t.Context())
				switch {
				case !slices.Contains(can, name):
					if err == nil {
						t.Errorf("may %s", name)
					} else {
						wantCode(t, err, "42501")
					}
				case err != nil:
					t.Errorf("may not %s: %v", name, err)
				}
			}
		})
	}
}

// The grants name each table, view and function that a migrated schema has, but for the
// version table, and nothing else. A right on columns, sequences or types is not among them.
func TestGrantsKnowEverythingInTheSchema(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	named := map[string]bool{}
	for _, purpose := range migrations.Purposes() {
		text, err := migrations.Grants("app", purpose)
		must(t, err)
		for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(" ,;\n", r) }) {
			if name, ok := strings.CutPrefix(word, "pglimit."); ok && name != "" {
				named[name] = true
			}
		}
	}
	there := texts(t, pool, `
		select c.relname::text from pg_class c
		where c.relnamespace = 'pglimit'::regnamespace and c.relkind in ('r', 'v', 'S', 'm') and c.relname not like 'goose%'
			and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'i') -- of an identity
		union all
		select p.proname::text from pg_proc p
		where p.pronamespace = 'pglimit'::regnamespace
			and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')`)
	for _, name := range there {
		if !named[name] {
			t.Errorf("nobody is granted pglimit.%s", name)
		}
		delete(named, name)
	}
	if len(named) > 0 || len(there) < 10 {
		t.Errorf("granted, but not there: %v", named)
	}
}

// A role's name is quoted, whatever is in it.
func TestGrantsToARoleOfAnyName(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	role := newRole(t, databaseURL(pool)) // which is dropped at the end, under its first name
	weird := role[:30] + `"; drop schema "pglimit -- ` + "\n'$$\\"
	quoted := pgx.Identifier{weird}.Sanitize()
	execute(t, pool, fmt.Sprintf(`alter role %s rename to %s`, role, quoted))
	t.Cleanup(func() {
		_, err := serverFor(t).admin.Exec(context.Background(), fmt.Sprintf(`alter role %s rename to %s`, quoted, role))
		must(t, err)
	})
	text, err := migrations.Grants(weird, migrations.ToRead)
	must(t, err)
	execute(t, pool, text)
	if !query[bool](t, pool, `select has_table_privilege($1, 'pglimit.buckets', 'select')`, weird) {
		t.Error("the role cannot read the view")
	}
}

func cliPrintsGrants(t *testing.T, c cli) {
	text := c.run(t, "migrate", "grants", "app").exits(t, 0) // without a database
	text.prints(t, `on pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks, pglimit.upsert, pglimit.for_update_nowait, pglimit.sliding_window, pglimit.sliding_log, pglimit.warm_up to "app";`, "pglimit.exclusion_range")
	if strings.Contains(text.stdout, "schedule") || strings.Contains(text.stdout, "goose") {
		t.Errorf("a role that decides is given more:\n%s", text.stdout)
	}
	c.run(t, "migrate", "grants", "app", "--for", "decide-and-sweep").exits(t, 0).prints(t, "pglimit.schedule")
	c.run(t, "migrate", "grants", "app", "--for", "sweep").fails(t, "decide-and-sweep")
	c.run(t, "migrate", "grants").fails(t, "needs a ROLE")
	c.run(t, "migrate", "grants", "").fails(t, "ROLE is empty")

	// A service with these rights and no others, in a database without exclusion_range.
	c, admin := c.on(t)
	url := strings.TrimPrefix(c.env[0], "DATABASE_URL=")
	role := newRole(t, url)
	c.run(t, "migrate", "up", "--without-exclusion-range").exits(t, 0)
	execute(t, admin, c.run(t, "migrate", "grants", role, "--without-exclusion-range").exits(t, 0).stdout)
	c.env = []string{"DATABASE_URL=" + with(url, "role", role)}
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 0)
	c.run(t, "allow", "k", "--limit", "1/1h").exits(t, 1)
	c.run(t, "migrate", "status").fails(t, "goose_db_version")
}
