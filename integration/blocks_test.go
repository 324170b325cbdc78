package integration

import (
	"context"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

var hourly = pglimit.Block{After: 1, Within: time.Hour, For: time.Hour, Max: 4 * time.Hour, Forget: time.Hour}

// tenPer is a limit that is easy to count with.
var tenPer = pglimit.PerSecond(10).WithBurst(10)

func takeOrBlock(t *testing.T, db database, key string, limit pglimit.Limit, tokens int64, block pglimit.Block) pglimit.Decision {
	t.Helper()
	return takeAll(t, db, strategies.TokenBucket{}, rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: max(tokens, 1), Block: &block})[0]
}

// A step back moves the end of a block; where there was none, there is none after it.
func TestAStepBackBeginsNoBlock(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, `insert into pglimit.token_bucket_blocks (key, limiter, denials, since_ns, level, forget_ns, at_ns)
		select 'k', 'test', 1, later, 0, later, later from (select pglimit.clock_ns() + 60000000000) ahead(later)`)
	execute(t, pool, "select pglimit.token_bucket_count_denial('k', 'test', null)")
	if !query[bool](t, pool, "select until_ns is null and at_ns <= pglimit.clock_ns() from pglimit.token_bucket_blocks") {
		t.Error(query[string](t, pool, "select b::text from pglimit.token_bucket_blocks b"))
	}
}

// A call that waits for the bucket's row while another one blocks the key takes nothing, whoever asks, and says so.
func TestNothingIsGrantedBehindABlock(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	second := newPool(t, databaseURL(pool), 1)
	block := hourly
	block.Within, block.For, block.Max = time.Hour, time.Hour, time.Hour
	asks := map[string]func(key string) pglimit.Decision{
		"Go": func(key string) pglimit.Decision { return takeOrBlock(t, second, key, tenPer, 3, block) },
		"SQL": func(key string) pglimit.Decision {
			d, err := askSQL(t.Context(), on(second), "pglimit.allow('test', $1, $2, 3)", key, tenPer.String())
			if err != nil {
				t.Error(err)
			}
			d.Blocked = d.RetryAfter > 59*time.Minute
			return d
		},
	}
	blocked := func(db database, key, rule string) bool {
		return query[bool](t, db, "select blocked_ns > 0 from pglimit.token_bucket_take_or_block($1, 'test', $2, $3, 1, 1, null, $4)", key, int64(tenPer.Token()), int64(tenPer.Window()), rule)
	}
	const others = "select string_agg(b::text, ' ') from pglimit.token_bucket b where limiter <> 'test' or key = 'other'"
	for name, ask := range asks {
		for _, key := range []string{name, "other"} {
			for _, limiter := range []string{"another", "test"} {
				takeAll(t, pool, strategies.TokenBucket{}, rate.Request{Limiter: limiter, Key: key, Limit: hours, Tokens: 1, Unit: 1})
			}
		}
		before := query[string](t, pool, others)
		first := begin(t, pool)
		execute(t, first, "update pglimit.token_bucket set full_ns = pglimit.clock_ns(), token_ns = $1 where key = $2 and limiter = 'test'", int64(tenPer.Token()), name)
		takeAll(t, first, strategies.TokenBucket{}, rate.Request{Limiter: "test", Key: name, Limit: tenPer, Tokens: 7, Unit: 7})
		if d := takeOrBlock(t, first, name, tenPer, 4, block); !d.Blocked {
			t.Fatalf("%s: %+v", name, d)
		}
		row := query[string](t, first, "select full_ns || ' ' || token_ns from pglimit.token_bucket where key = $1 and limiter = 'test'", name)
		told := make(chan pglimit.Decision, 1)
		go func() { told <- ask(name) }()
		waiting(t, pool, 1)
		must(t, first.Commit(context.WithoutCancel(t.Context())))
		if d := <-told; d.Allowed || !d.Blocked || d.Granted != 0 {
			t.Errorf("%s: %+v", name, d)
		}
		if after := query[string](t, pool, "select full_ns || ' ' || token_ns from pglimit.token_bucket where key = $1 and limiter = 'test'", name); after != row {
			t.Errorf("%s: the row is %s, was %s", name, after, row)
		}
		if after := query[string](t, pool, others); after != before {
			t.Errorf("%s: other rows are %s, were %s", name, after, before)
		}
		if denials := query[int64](t, pool, "select sum(denials) from pglimit.blocks"); denials != 0 {
			t.Errorf("%s: %d denials were counted", name, denials)
		}
		for _, rule := range []string{"{}", "{9,1,1,1,1}"} {
			if !blocked(pool, name, rule) || blocked(pool, "new", rule) {
				t.Errorf("%s is not blocked, or a new key is", name)
			}
		}
	}
}

// A reset in SQL ends a block, as one in Go does.
func TestAResetInSQLEndsABlock(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, key := range []string{"k", "other"} {
		take(t, pool, strategies.TokenBucket{}, key, hours)
		takeOrBlock(t, pool, key, hours, 1, hourly)
	}
	execute(t, pool, "insert into pglimit.token_bucket_blocks select key, 'another', denials, since_ns, level, until_ns, forget_ns, at_ns from pglimit.token_bucket_blocks")
	execute(t, pool, "select pglimit.reset('test', 'k')")
	if d := takeOrBlock(t, pool, "k", hours, 1, hourly); !d.Allowed || d.Blocked {
		t.Errorf("%+v", d)
	}
	if d := takeOrBlock(t, pool, "other", hours, 1, hourly); !d.Blocked {
		t.Errorf("another key: %+v", d)
	}
	if blocks := query[int64](t, pool, "select count(*) from pglimit.token_bucket_blocks where limiter = 'another'"); blocks != 2 {
		t.Errorf("%d blocks of another limiter are left of 2", blocks)
	}
}

// A row goes when its denials and blocks mean nothing any more, for a minute, and not before.
func TestSweepRemovesForgottenBlocks(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := pglimit.Every(1000 * time.Hour)
	counted, blocked := hourly, hourly
	counted.After, counted.Within = 2, 30*time.Second
	blocked.Within, blocked.For, blocked.Forget = time.Second, time.Second, time.Hour
	take(t, pool, s, "counted", limit)
	takeOrBlock(t, pool, "counted", limit, 1, counted)
	take(t, pool, s, "blocked", limit)
	takeOrBlock(t, pool, "blocked", limit, 1, blocked)
	for _, test := range []struct {
		older   time.Duration
		removed int64
	}{{0, 0}, {80 * time.Second, 0}, {11 * time.Second, 1}, {50 * time.Minute, 0}, {11 * time.Minute, 1}} {
		execute(t, pool, "update pglimit.token_bucket_blocks set since_ns = since_ns - $1, until_ns = until_ns - $1, forget_ns = forget_ns - $1, at_ns = at_ns - $1", test.older.Nanoseconds())
		if n := sweepOnce(t, pool, s); n != test.removed {
			t.Errorf("%v later: %d removed, want %d", test.older, n, test.removed)
		}
	}
}

// A denial that waited for one that blocks the key is told of the block, and does not count.
func TestADenialThatWaitedBehindABlockDoesNotCount(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	block := hourly
	block.Within, block.Forget = time.Hour, time.Hour
	take(t, pool, strategies.TokenBucket{}, "k", hours)
	first, second := begin(t, pool), newPool(t, databaseURL(pool), 1)
	takeOrBlock(t, first, "k", hours, 1, block)
	told := make(chan pglimit.Decision, 1)
	go func() {
		decisions, err := strategies.TokenBucket{}.Take(t.Context(), on(second), []rate.Request{{Limiter: "test", Key: "k", Limit: hours, Tokens: 1, Unit: 1, Block: &block}})
		if err != nil {
			t.Error(err)
			decisions = make([]pglimit.Decision, 1)
		}
		told <- decisions[0]
	}()
	waiting(t, pool, 1)
	must(t, first.Commit(context.WithoutCancel(t.Context())))
	until := query[int64](t, pool, "select until_ns from pglimit.token_bucket_blocks where key = 'k'")
	if d := <-told; !d.Blocked || d.At.Add(d.BlockedFor).UnixNano() != until {
		t.Errorf("%+v: want it blocked until %v", d, time.Unix(0, until).UTC())
	}
	if state := query[string](t, pool, "select denials || ' denials, level ' || level from pglimit.blocks where key = 'k'"); state != "0 denials, level 1" {
		t.Error(state)
	}
}

// A denial that waited for another one counts from when it could: the span of the other may be over.
func TestADenialThatWaitedForAnotherBeginsASpan(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	block := hourly
	block.After, block.Within = 2, 200*time.Millisecond
	take(t, pool, strategies.TokenBucket{}, "k", hours)
	first, second := begin(t, pool), newPool(t, databaseURL(pool), 1)
	takeOrBlock(t, first, "k", hours, 1, block)
	told := make(chan pglimit.Decision, 1)
	go func() { told <- takeOrBlock(t, second, "k", hours, 1, block) }()
	waiting(t, pool, 1)
	over := query[int64](t, first, "select pglimit.clock_ns() from pg_sleep(0.21)")
	must(t, first.Commit(context.WithoutCancel(t.Context())))
	if d := <-told; d.Blocked || d.Allowed {
		t.Errorf("%+v", d)
	}
	if since := query[int64](t, pool, "select since_ns from pglimit.token_bucket_blocks where denials = 1"); since < over {
		t.Errorf("the span begins %v before the other denial was counted", time.Duration(over-since))
	}
}

// A denial writes nothing and locks no row, also where a lease has the tokens, and of a key that was just blocked.
func TestADenialOfAnIDOrABlockedKeyLocksNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	clockIs(t, pool, time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano())
	leased := pglimit.LeaseRequest{Limiter: "test", Key: "leased", Limit: hours, Tokens: hours.Burst, Share: 1, TTL: time.Hour}
	if lease, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), leased); err != nil || lease.Tokens != hours.Burst {
		t.Fatalf("%+v, %v", lease, err)
	}
	take(t, pool, strategies.TokenBucket{}, "blocked", hours)
	takeOrBlock(t, pool, "blocked", hours, 1, hourly)
	for name, ask := range map[string]func(tx database) pglimit.Decision{
		"leased":  func(tx database) pglimit.Decision { return takeOnce(t, tx, "id", "leased", hours, time.Hour) },
		"blocked": func(tx database) pglimit.Decision { return takeOrBlock(t, tx, "blocked", hours, 1, hourly) },
	} {
		tx := begin(t, pool)
		if d := ask(tx); d.Allowed || d.Blocked != (name == "blocked") {
			t.Errorf("%s: %+v", name, d)
		}
		if query[bool](t, tx, "select pg_current_xact_id_if_assigned() is not null") {
			t.Errorf("%s: the denial wrote or locked a row", name)
		}
		must(t, tx.Rollback(t.Context()))
	}
}

// A block, or an ID, that was written 10 ms ahead of the clock was written before no step: it ends when it would have.
func TestABlockOrAnIDALittleAheadEndsInTime(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()
	clockIs(t, pool, now+10*ms)
	block := hourly
	block.Within, block.For, block.Max = time.Minute, time.Second, time.Hour
	take(t, pool, strategies.TokenBucket{}, "k", hours)
	takeOrBlock(t, pool, "k", hours, 1, block)
	first := takeOnce(t, pool, "id", "l", hours.WithBurst(5), time.Second)
	for at, left := range map[int64]time.Duration{0: 1010 * time.Millisecond, 1000 * ms: 10 * time.Millisecond, 1010 * ms: 0} {
		clockIs(t, pool, now+at)
		d := takeOrBlock(t, pool, "k", tenPer, 0, block)
		inSQL, err := askSQL(t.Context(), on(pool), "pglimit.peek('test', 'k', $1)", tenPer.String())
		if d.BlockedFor != left || inSQL.RetryAfter != left || err != nil {
			t.Errorf("%v later: %+v; in SQL %+v, %v; want it blocked for %v", time.Duration(at), d, inSQL, err, left)
		}
	}
	for _, at := range []int64{0, 1000 * ms, 1010 * ms} {
		clockIs(t, pool, now+at)
		if again := takeOnce(t, pool, "id", "l", hours.WithBurst(5), time.Second); (again == first) != (at < 1010*ms) {
			t.Errorf("%v later: %+v, was %+v", time.Duration(at), again, first)
		}
	}
	clockIs(t, pool, now+int64(time.Minute)) // and one that was written before a step is kept for as long from its first use
	far := takeOnce(t, pool, "far", "m", hours.WithBurst(5), time.Second)
	for _, at := range []int64{0, 999 * ms, 1001 * ms} {
		clockIs(t, pool, now+at)
		if again := takeOnce(t, pool, "far", "m", hours.WithBurst(5), time.Second); (again == far) != (at < 1000*ms) {
			t.Errorf("%v after a step back: %+v, was %+v", time.Duration(at), again, far)
		}
	}
}
