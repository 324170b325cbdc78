package integration

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// token_bucket answers peeks and denials in read-only transactions, so on a standby
// too; the others send statements that could write, which Postgres refuses there.
func TestTokenBucketDeniesReadOnly(t *testing.T) {
	t.Parallel()
	pool, strategy := newMigrated(t), strategies.TokenBucket{}
	burst := hours.WithBurst(10)
	take(t, pool, strategy, "taken", hours)
	take(t, pool, strategy, "spare", burst)
	take(t, pool, strategy, "spare 2", burst)
	take(t, pool, strategy, "ahead", hours) // a row that is ahead of the standby's clock
	execute(t, pool, "update pglimit.token_bucket set at_ns = at_ns + 60000000000, full_ns = full_ns + 60000000000 where key = 'ahead'")
	tx := begin(t, pool)
	execute(t, tx, "set transaction read only")
	execute(t, pool, "do $$ begin execute format('alter database %I set default_transaction_read_only = on', current_database()); end $$")
	standby := newPool(t, databaseURL(pool), 4)
	for name, db := range map[string]database{"in a transaction": tx, "outside": standby} {
		ask := func(tokens int64, keys ...string) ([]pglimit.Decision, error) {
			var requests []rate.Request
			for _, key := range keys {
				requests = append(requests, rate.Request{Limiter: "test", Key: key, Limit: hours, Tokens: tokens, Unit: 1})
			}
			return strategy.Take(t.Context(), on(db), requests)
		}
		for _, keys := range [][]string{{"taken"}, {"new"}, {"taken", "new", "newer"}} {
			decisions, err := ask(0, keys...)
			if err != nil {
				t.Fatalf("%s, peeks at %v: %v", name, keys, err)
			}
			for i, d := range decisions {
				if d.Allowed != (keys[i] != "taken") {
					t.Errorf("%s, a peek at %s of %v: allowed %v", name, keys[i], keys, d.Allowed)
				}
			}
		}
		for _, keys := range [][]string{{"taken"}, {"taken", "taken"}, {"ahead"}, {"ahead", "taken"}} {
			decisions, err := ask(1, keys...)
			if err != nil {
				t.Fatalf("%s, %v: %v", name, keys, err)
			}
			for _, d := range decisions {
				if d.Allowed {
					t.Errorf("%s, %v: allowed", name, keys)
				}
			}
		}
	}
	once := rate.Request{Limiter: "test", Key: "ahead", Limit: hours, Tokens: 1, Unit: 1, ID: "1", IDTTL: time.Minute}
	if decisions, err := strategy.Take(t.Context(), on(standby), []rate.Request{once}); err != nil || decisions[0].Allowed {
		t.Errorf("with an ID: %+v, %v", decisions, err)
	}
	if d := takeGroups(t, standby, asks(hours, "new", "taken")); !d[0].Allowed || d[1].Allowed {
		t.Errorf("a group: %+v", d)
	}
	if allowText(t, standby, "ahead", "1/1000h", 1) {
		t.Error("allow: allowed")
	}
	// What could be granted is an error there, whichever way it goes.
	for _, keys := range [][]string{{"new"}, {"taken", "new"}, {"spare"}, {"spare", "spare"}, {"spare", "spare 2"}} {
		var requests []rate.Request
		for _, key := range keys {
			requests = append(requests, rate.Request{Limiter: "test", Key: key, Limit: burst, Tokens: 2, Unit: 1})
		}
		if _, err := strategy.Take(t.Context(), on(standby), requests); sqlState(err) != "25006" {
			t.Errorf("%v: %v", keys, err)
		}
	}
	if _, err := strategy.Take(t.Context(), on(standby), grouped(asks(hours, "new", "newer"))); sqlState(err) != "25006" {
		t.Errorf("a group that would be granted: %v", err)
	}
}
