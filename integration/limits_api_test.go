package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Operators change the table in Go, on a pool of pgx's and on a *sql.DB with every driver.
func TestLimitsInGo(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, pool *pgxpool.Pool, table *limits.Table) {
		ctx := t.Context()
		now, err := table.Now(ctx)
		must(t, err)
		all := limits.Rule{Limiter: "api", Limit: "5/1h", Note: "default", By: "ann"}
		some := limits.Rule{Limiter: "api", Prefix: "bót:", Action: pglimit.ActionDeny, Note: "scraping", By: "bob", Expires: now.Add(time.Hour)}
		one := limits.Rule{Limiter: "api", Key: "bót:us", Limit: "9/1h burst 3", MaxWait: "50%", Note: "ours\n\"x\"", By: "ann"}
		trial := limits.Rule{Limiter: "api", Action: pglimit.ActionObserve, Limit: "1/1h", Note: "enough?", By: "ann", Disabled: true}
		for _, rule := range []limits.Rule{all, some, one, trial} {
			replaced, err := table.Set(ctx, rule)
			must(t, err)
			if replaced != nil {
				t.Errorf("%+v replaced %+v", rule, replaced)
			}
		}
		faster := one
		faster.Limit = "9/30m burst 3"
		replaced, err := table.Set(ctx, faster)
		must(t, err)
		wantRules(t, []limits.Rule{one}, *replaced)

		list, err := table.List(ctx)
		must(t, err)
		wantRules(t, []limits.Rule{faster, some, all, trial}, list...)

		execute(t, pool, "select pglimit.allow('api', k, '5/1h') from unnest(array['bót:us', 'bót:them', 'bót:1', 'me']) k")
		execute(t, pool, "insert into pglimit.exclusion_range (limiter, key, during) values ('api', 'bót:2', '[2026-01-01, 2026-02-01)')")
		for _, want := range []struct {
			rule limits.Rule
			n    int64
		}{{all, 1}, {some, 3}, {one, 1}, {limits.Rule{Action: pglimit.ActionOff}, 5}, {limits.Rule{Limiter: "web"}, 0}} {
			n, err := table.Reaches(ctx, want.rule)
			if err != nil || n != want.n {
				t.Errorf("%+v reaches %d buckets, want %d, %v", want.rule, n, want.n, err)
			}
		}

		rules, err := table.Explain(ctx, "api", "bót:us")
		must(t, err)
		states := []limits.State{limits.Holds, limits.Overruled, limits.Overruled, limits.Disabled}
		for i, r := range rules {
			wantRules(t, []limits.Rule{[]limits.Rule{faster, some, all, trial}[i]}, r.Rule)
			if r.State != states[i] || (r.Bucket != nil) != (i == 0) {
				t.Errorf("%+v", r)
			}
		}
		if b := rules[0].Bucket; b.Remaining != 2 || b.RetryAfter != 0 || b.ResetAfter <= 0 || b.ResetAfter > 30*time.Minute/9 {
			t.Errorf("%+v", b)
		}

		before, err := table.Enable(ctx, limits.Rule{Limiter: "api", Action: pglimit.ActionObserve, Note: "on", By: "cat"})
		must(t, err)
		wantRules(t, []limits.Rule{trial}, *before)
		before, err = table.Disable(ctx, limits.Rule{Limiter: "api", Prefix: "bót:", Note: "pause", By: "cat"})
		must(t, err)
		wantRules(t, []limits.Rule{some}, *before)
		before, err = table.Delete(ctx, limits.Rule{Limiter: "api", Note: "gone", By: "cat"})
		must(t, err)
		wantRules(t, []limits.Rule{all}, *before)
		for _, none := range []func() (*limits.Rule, error){
			func() (*limits.Rule, error) { return table.Delete(ctx, limits.Rule{Limiter: "api", Note: "gone"}) },
			func() (*limits.Rule, error) { return table.Enable(ctx, limits.Rule{Limiter: "web", Note: "on"}) },
		} {
			if before, err := none(); before != nil || err != nil {
				t.Errorf("%+v, %v", before, err)
			}
		}

		history, err := table.History(ctx, "api", "bót:them", 3)
		must(t, err)
		var said []string
		for _, h := range history {
			said = append(said, fmt.Sprint(h.By, " ", h.Note, " ", h.Before != nil, h.After != nil))
		}
		if got := strings.Join(said, ", "); got != "cat gone true false, cat pause true true, cat on true true" {
			t.Errorf("history: %s", got)
		}

		list, err = table.List(ctx)
		must(t, err)
		added := limits.Rule{Limiter: "web", Limit: "1/s", By: "dan"}
		for _, dry := range []bool{true, false} {
			changes, err := table.Import(ctx, []limits.Rule{list[0], list[1], added}, limits.ImportConfig{Prune: true, Note: "release", By: "dan", DryRun: dry})
			must(t, err)
			if len(changes) != 2 || changes[0].After != nil || changes[0].Before.Action != pglimit.ActionObserve || changes[1].Before != nil || changes[1].After.Note != "release" {
				t.Errorf("dry %t: %+v", dry, changes)
			}
			now, err := table.List(ctx)
			must(t, err)
			if reflect.DeepEqual(now, list) != dry {
				t.Errorf("dry %t: %+v", dry, now)
			}
		}

		// All or nothing, and which rule is to blame.
		bad := limits.Rule{Limiter: "web", Key: "k", Action: pglimit.ActionDeny, Limit: "1/s", Note: "why"}
		_, err = table.Import(ctx, []limits.Rule{{Limiter: "web", Action: pglimit.ActionDeny, Note: "why"}, bad}, limits.ImportConfig{})
		if !errors.Is(err, limits.ErrNoRule) || !strings.Contains(err.Error(), "rule 2 (web k): the actions enforce and observe need a limit") {
			t.Errorf("%v", err)
		}
		_, err = table.Set(ctx, bad)
		if !errors.Is(err, limits.ErrNoRule) || !strings.Contains(err.Error(), "need a limit") {
			t.Errorf("%v", err)
		}
		_, err = table.Set(ctx, limits.Rule{Limiter: "web", Limit: "1/x", Note: "why"})
		if !errors.Is(err, limits.ErrNoRule) || !strings.Contains(err.Error(), `limit "1/x": period "x" is not`) {
			t.Errorf("%v", err)
		}
		over := limits.Rule{Limiter: "web", Key: "k", Action: pglimit.ActionDeny, Note: "why", Expires: now.Add(-time.Second)}
		_, err = table.Set(ctx, over)
		_, imported := table.Import(ctx, []limits.Rule{added, over}, limits.ImportConfig{Note: "why"})
		for _, err := range []error{err, imported} {
			if !errors.Is(err, limits.ErrNoRule) || !strings.Contains(err.Error(), "that has passed") {
				t.Errorf("%v", err)
			}
		}
		after, err := table.List(ctx)
		must(t, err)
		if len(after) != 3 || after[2].Limit != "1/s" {
			t.Errorf("after errors: %+v", after)
		}
	}
	t.Run("pgxpool", func(t *testing.T) {
		t.Parallel()
		pool := newMigrated(t)
		test(t, pool, limits.New(migrationPool(t, databaseURL(pool))))
	})
	for _, driver := range sqlDrivers {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			test(t, pool, limits.New(openSQL(t, driver.open, databaseURL(pool), 2)))
		})
	}
}

// wantRules compares what was set with what was read.
func wantRules(t *testing.T, want []limits.Rule, got ...limits.Rule) {
	t.Helper()
	for i := range got {
		if got[i].ID == 0 || got[i].At.IsZero() {
			t.Errorf("%+v", got[i])
		}
		got[i].ID, got[i].At, got[i].Expires = 0, time.Time{}, got[i].Expires.Truncate(time.Microsecond)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Errors say what to do.
func TestErrorsOfLimits(t *testing.T) {
	t.Parallel()
	rule := limits.Rule{Limiter: "api", Limit: "5/s", Note: "why"}
	none := limits.New(migrationPool(t, newDatabase(t)))
	pool := newMigrated(t)
	role := newRole(t, databaseURL(pool))
	text, err := migrations.Grants(role, migrations.ToDecide)
	must(t, err)
	execute(t, pool, text)
	service := limits.New(migrationPool(t, databaseURL(pool), as(role)))
	reader := limits.New(migrationPool(t, databaseURL(pool), setting("default_transaction_read_only", "on")))
	for _, test := range []struct {
		table *limits.Table
		want  error
		says  string
	}{
		{none, pglimit.ErrNotMigrated, `run "pglimit migrate up"`},
		{service, pglimit.ErrPermission, `"pglimit migrate grants ROLE --for limits"`},
		{reader, pglimit.ErrReadOnly, "25006"},
	} {
		_, set := test.table.Set(t.Context(), rule)
		_, imported := test.table.Import(t.Context(), []limits.Rule{rule}, limits.ImportConfig{})
		for _, err := range []error{set, imported} {
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v", err, test.want)
			}
		}
	}
}

// Whatever the rules, SQL says that the same ones hold as Go decides by.
func TestSQLExplainsWhatGoDecides(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	table := limits.New(pool)
	random := rand.New(rand.NewPCG(25, 11))
	names := []string{"a", "ab", "abc", "é", "éa", "b"}
	read := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Every: 10 * time.Millisecond})
	newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: read})
	differed := 0
	for round := range 20 {
		var rules []limits.Rule
		place := map[string]bool{}
		for range random.IntN(12) {
			r := limits.Rule{
				Limiter: []string{"api", "web"}[random.IntN(2)], Action: pglimit.Action(random.IntN(5)), Note: "why", Disabled: random.IntN(5) == 0,
			}
			if random.IntN(3) == 0 {
				r.Expires = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) // below half of them expire
			}
			switch {
			case r.Action == pglimit.ActionOff:
				r.Limiter = []string{"api", ""}[random.IntN(2)]
				r.Disabled = r.Disabled || random.IntN(2) == 0
			case random.IntN(3) == 0:
				r.Key = names[random.IntN(len(names))]
			case random.IntN(3) > 0:
				r.Prefix = names[random.IntN(len(names))]
			}
			if r.Action == pglimit.ActionEnforce || r.Action == pglimit.ActionObserve {
				r.Limit = fmt.Sprintf("%d/1h", 1+random.IntN(9))
			}
			if where := fmt.Sprint(r.Limiter, "/", r.Key, "/", r.Prefix, "/", r.Kind(), r.Expires.IsZero()); !place[where] {
				place[where] = true
				rules = append(rules, r)
			}
		}
		// Another row each time, so that the version says when it was read.
		rules = append(rules, limits.Rule{Limiter: "round", Limit: fmt.Sprintf("%d/s", 1+round), Note: "why"})
		_, err := table.Import(t.Context(), rules, limits.ImportConfig{Prune: true, Note: "why"})
		must(t, err)
		execute(t, pool, "update pglimit.limits set expires_at = '2000-01-01', note = 'why' where expires_at is not null and id % 2 = 0")
		version := query[int64](t, pool, "select max(id) from pglimit.limits_history")
		for patience := soon(t, time.Minute); read.Status().Version != version; {
			if patience.Err() != nil {
				t.Fatalf("%+v, want version %d", read.Status(), version)
			}
		}
		for _, limiter := range []string{"api", "web", "other"} {
			for _, key := range names {
				live, observed := read.Explain(limiter, key, false)
				want := map[int64]bool{}
				for _, r := range []*pglimit.LimitRule{live, observed} {
					if r != nil {
						want[r.ID] = true
					}
				}
				explained, err := table.Explain(t.Context(), limiter, key)
				must(t, err)
				got := map[int64]bool{}
				for _, r := range explained {
					if r.State == limits.Holds {
						got[r.ID] = true
					}
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s %s: SQL says that %v hold, Go %v, of %+v", limiter, key, got, want, rules)
				}
				differed += len(explained) - len(got)
			}
		}
	}
	if differed < 50 {
		t.Errorf("%d rules did not hold", differed)
	}
}
