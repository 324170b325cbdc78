package integration

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/bucket"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// What no program of ours sends is refused with an error that says so, at once, and takes
// nothing: null, negative, zero, duplicate and overflowing arguments.
func TestFunctionsRefuseNonsense(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	timelessly(t, pool)
	url := with(databaseURL(pool), "statement_timeout", "20s") // what overflows a loop takes for ever
	guarded := newPool(t, url, 2)

	type call struct {
		name string
		args []string // good ones
	}
	take := call{"token_bucket_take", []string{"'k'", "'test'", "1000", "10000", "1", "1", "null"}}
	lease := call{"token_bucket_lease", []string{"'k'", "'test'", "1000", "10000", "1", "1", "1000000", "0", "0", "0"}}
	once := call{"token_bucket_take_once", []string{"'k'", "'test'", "'id'", "1000", "10000", "1", "1000000", "null"}}
	block := call{"token_bucket_take_or_block", []string{"'k'", "'test'", "1000", "10000", "1", "1", "null", "'{1,1000,1000,1000,0}'"}}
	back := call{"token_bucket_give_back", []string{"'k'", "'test'", "1000", "10000", "1", "1000", "0"}}
	many := call{"token_bucket_take_many", []string{
		"array['a','b']", "array['test','test']", "array[1000,1000]::bigint[]", "array[10000,10000]::bigint[]",
		"array[1,1]::bigint[]", "array[1,2]::bigint[]", "array[1,1]::bigint[]", "array[1,1]::bigint[]", "null::bigint[]", "null::bigint[]", "false", "'20ms'",
	}}
	run := func(c call, changed map[int]string) error {
		args := append([]string(nil), c.args...)
		for i, arg := range changed {
			args[i] = arg
		}
		_, err := guarded.Exec(t.Context(), fmt.Sprintf("select pglimit.%s(%s)", c.name, strings.Join(args, ", ")))
		return err
	}
	const largest = "9223372036854775807"
	// By what an argument is.
	names, prices, windows, counts := []string{"null"}, []string{"null", "0", "-1", largest}, []string{"null", "0", "-1", "999", largest}, []string{"null", "-1"}
	for _, test := range []struct {
		call
		args [][]string // bad values of the first, the second...
	}{
		{take, [][]string{names, names, prices, windows, {"null", "-1", "-" + largest}, {"null", "0", "-1", "2", largest}}},
		{lease, [][]string{names, names, prices, windows, counts, {"null", "0", "-1"}, prices, counts, {"null", "-1", "1"}}},
		{once, [][]string{names, names, {"null", "''"}, prices, windows, prices, prices}},
		{block, [][]string{names, names, prices, windows, {"null", "0", "-1"}, nil, nil, {
			"'{1}'", "'{0,1000,1000,1000,0}'", "'{1,0,1000,1000,0}'", "'{1,1000,0,1000,0}'", "'{1,1000,1001,1000,0}'", "'{1,1000,1000,1000,-1}'",
			"'{null,1000,1000,1000,0}'", "'{1," + largest + ",1000,1000,0}'", "'{1,1000,1000," + largest + ",0}'", "'{1,1000,1000,1000," + largest + "}'",
		}}},
		{back, [][]string{names, names, {"null", "0", "-1", "10001", largest}, windows, {"null", "-1", largest}, {"null", "-1", "-" + largest}, {"null", "-1", "-" + largest}}},
		{many, [][]string{
			{"null", "'{}'", "array['a']", "array['a',null]", "array['a','a']"}, {"null", "'{}'", "array['test',null]", "array['test','test','test']"},
			{"null", "'{}'", "'{1000,0}'", "'{1000,-1}'", "'{1000,null}'"}, {"null", "'{}'", "'{10000,null}'", "'{10000," + largest + "}'"},
			{"null", "'{}'", "'{1,1,1}'", "'{1,-2}'", "'{1,null}'", "'{-1,1}'"},
		}},
	} {
		for arg, values := range test.args {
			for _, value := range values {
				err := run(test.call, map[int]string{arg: value})
				if err == nil || sqlState(err) == "57014" || sqlState(err) == "XX000" {
					t.Errorf("%s with %s as argument %d: %v", test.name, value, arg+1, err)
				}
			}
		}
	}
	// In turn, or as much as there is: what is wanted must be there.
	for _, changed := range []map[int]string{
		{6: "'{-1,1}'"}, {7: "'{0,1}'"},
		{7: "'{-1,1}'"}, {8: "'{-1,0}'"}, {8: "'{null,0}'"}, {8: "'{}'"}, {8: "'{9000000000000000000,0}'"}, {5: "'{1,3}'"}, {5: "'{null,2}'"}, {5: "'{}'"}, {5: "'{1}'"}, {5: "'{9000000000000000000,2}'"},
		{9: "'{0,2}'"}, {9: "'{2,1,2}'"}, {9: "'{1,1,2}'"}, {9: "'{1}'"}, {9: "'{}'"},
	} {
		if err := run(many, changed); sqlState(err) != "22023" {
			t.Errorf("%v: %v", changed, err)
		}
	}
	// So is what would be a division by zero, or break a rule of the table.
	for _, c := range []call{take, lease, many} {
		for _, changed := range []map[int]string{{0: "null"}, {1: "null"}, {2: "null"}} {
			if err := run(c, changed); sqlState(err) != "22023" {
				t.Errorf("%s with %v: %v", c.name, changed, err)
			}
		}
	}
	for _, c := range []call{take, lease, once, block} {
		price := 2
		if c.name == once.name {
			price++
		}
		for _, value := range []string{"0", "-1"} {
			if err := run(c, map[int]string{price: value}); sqlState(err) != "22023" {
				t.Errorf("%s at %s a token: %v", c.name, value, err)
			}
		}
	}
	// A look, too, is in units of at least one.
	for _, unit := range []string{"0", "-1", "11"} {
		if err := run(take, map[int]string{4: "0", 5: unit}); sqlState(err) != "22023" {
			t.Errorf("a look in units of %s: %v", unit, err)
		}
	}
	// Numbers that are good alone, and too large together, are named too, instead of an overflow.
	if err := run(back, map[int]string{5: "9000000000000000000", 6: "9000000000000000000"}); sqlState(err) != "22023" {
		t.Errorf("a refund of a grant far ahead: %v", err)
	}
	if err := run(many, map[int]string{0: "array['k','k']", 4: "'{1,1}'"}); err == nil {
		t.Error("a bucket that is named twice was taken from")
	}
	if rows := query[int64](t, pool, "select count(*) from pglimit.token_bucket where full_ns > pglimit.clock_ns() - 60000000000"); rows != 0 {
		t.Errorf("%d buckets were taken from", rows)
	}
	// The good ones are good.
	for _, c := range []call{take, lease, once, block, back, many} {
		if err := run(c, nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// What does not fit a bigint is named also by a connection that has no plan yet. As much as there is may be any
	// number.
	for _, changed := range []map[int]string{{4: largest, 5: largest}, {4: "-" + largest}, {3: largest}, {3: largest, 4: largest}} {
		guarded.Reset()
		if err := run(take, changed); sqlState(err) != "22023" {
			t.Errorf("%v: %v", changed, err)
		}
	}
	guarded.Reset()
	if err := run(take, map[int]string{4: largest}); err != nil {
		t.Error(err)
	}
}

// No program writes a row that could not be.
func TestTablesRefuseImpossibleRows(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, table := range []string{"token_bucket", "upsert", "for_update_nowait"} {
		for _, row := range []string{"0, 1, 1", "-1, 1, 1", "1, 0, 1", "1, -1, 1", "1, 1, 0", "1, 1, -1", "null, 1, 1", "1, null, 1", "1, 1, null"} {
			_, err := pool.Exec(t.Context(), "insert into pglimit."+table+" (key, limiter, full_ns, token_ns, at_ns) values ('k', 'test', "+row+")")
			if state := sqlState(err); state != "23514" && state != "23502" {
				t.Errorf("%s (%s): %v", table, row, err)
			}
		}
	}
	for _, leases := range []string{"-1, 1", "0, 1", "1, 0"} {
		_, err := pool.Exec(t.Context(), "insert into pglimit.token_bucket values ('k', 'test', 1, 1, 1, "+leases+")")
		if sqlState(err) != "23514" {
			t.Errorf("leases %s: %v", leases, err)
		}
	}
	for _, row := range []string{
		"answers values ('k', 'test', 'id', '{1,0,1,1,1,0,0,1}', 1, 1)", "answers values ('k', 'test', 'id', '{1,1}', 1, 1)", "answers values ('k', 'test', 'id', '{1,1,1,1,1,0,0,1}', 1, 0)",
		"blocks values ('k', 'test', -1, 1, 0, null, 1, 1)", "blocks values ('k', 'test', 1, 1, -1, null, 1, 1)", "blocks values ('k', 'test', 1, 1, 1, 0, 1, 1)",
	} {
		if _, err := pool.Exec(t.Context(), "insert into pglimit.token_bucket_"+row); sqlState(err) != "23514" {
			t.Errorf("%s: %v", row, err)
		}
	}
	for _, during := range []string{"null", "'empty'", "'(,)'", "'[2000-01-01,)'", "'(,2000-01-01]'", "'[-infinity,infinity]'", "'[0001-01-01,9999-01-01]'"} {
		_, err := pool.Exec(t.Context(), "insert into pglimit.exclusion_range values ('k', 'test', "+during+")")
		if state := sqlState(err); state != "23514" && state != "23502" {
			t.Errorf("a range that is %s: %v", during, err)
		}
	}
}

// A row that is as extreme as the table allows makes nothing fail: its own bucket denies or
// grants, other buckets, the sweep and the view do not notice.
func TestExtremeRowsEndNothing(t *testing.T) {
	t.Parallel()
	const largest = "9223372036854775807"
	values := []string{"1", "1000000000", "pglimit.clock_ns()", "9000000000000000000", largest}
	limits := []pglimit.Limit{
		{Tokens: 1, Period: 1, Burst: 1}, pglimit.PerSecond(10), pglimit.Every(pglimit.MaxWindow), hours.WithBurst(10),
		pglimit.PerSecond(pglimit.MaxRate).WithBurst(int64(pglimit.MaxWindow)),
	}
	eachTokenBucket(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		table := "pglimit." + strategy.Name()
		if strategy.Name() == "exclusion_range" {
			for i, during := range []string{"[1970-01-02,2261-01-01]", "(2000-01-01,2000-01-02)", "[2200-01-01,2201-01-01]"} {
				execute(t, pool, "insert into "+table+" values ($1, 'test', $2::tstzrange)", fmt.Sprint("k", i), during)
			}
		} else {
			columns, leases, from := "key, limiter, full_ns, token_ns, at_ns", "", ""
			if strategy.Name() == "token_bucket" {
				columns += ", leased_ns, until_ns"
				leases = ", l, u"
				from = ", unnest(array[null, 1, " + largest + "]) l, unnest(array[null, 1, pglimit.clock_ns() + 3600000000000, " + largest + "]) u"
			}
			list := "unnest(array[" + strings.Join(values, ", ") + "]::bigint[])"
			execute(t, pool, "insert into "+table+" ("+columns+") select 'k' || row_number() over () - 1, 'test', f, t, a"+leases+" from "+list+" f, "+list+" t, "+list+" a"+from)
		}
		keys := query[int](t, pool, "select count(*) from "+table)
		began := time.Now()
		for _, i := range rand.Perm(keys) {
			if time.Since(began) > 2*time.Second {
				break
			}
			key := fmt.Sprint("k", i)
			limit := limits[i%len(limits)]
			if strategy.Check(&rate.Request{Limit: limit}) != nil {
				limit = limit.WithBurst(1)
			}
			ask := func(tokens, unit int64, key string) rate.Request {
				return rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: tokens, Unit: unit}
			}
			row := query[string](t, pool, "select (select t::text from "+table+" t where key = $1)", key)
			for _, requests := range [][]rate.Request{
				{ask(0, 1, key)}, {ask(1, 1, key)}, {ask(limit.Burst, 1, key)},
				{ask(0, 1, key), ask(1, 1, "other")}, {ask(1, 1, key), ask(1, 1, "other")}, {ask(limit.Burst, 1, key), ask(1, 1, key)},
			} {
				d, err := strategy.Take(t.Context(), on(pool), requests)
				if err != nil && !strings.Contains(err.Error(), "40001") {
					t.Errorf("%s: %v of %+v: %v", row, limit, requests, err)
				} else if err == nil && (d[0].RetryAfter < 0 || d[0].ResetAfter < 0 || d[0].Remaining < 0) {
					t.Errorf("%s: %v: %+v", row, limit, d[0])
				}
			}
			refund := pglimit.Refund{Request: ask(1, 1, key), At: time.Now()}
			if err := strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{refund}); err != nil {
				t.Errorf("%s: GiveBack: %v", row, err)
			}
			if _, is := strategy.(pglimit.Leaser); !is {
				continue
			}
			settle := pglimit.Lease{Tokens: 1, Until: time.Now().Add(time.Hour)}
			if until := query[int64](t, pool, "select coalesce((select until_ns from "+table+" where key = $1), 0)", key); until > 0 {
				settle.Until = time.Unix(0, until)
			}
			for _, r := range []pglimit.LeaseRequest{
				{Tokens: 1, Share: 1}, {Tokens: limit.Burst, Share: 1, Settle: settle, Spent: 1}, {Tokens: 0, Share: 1, Settle: settle},
			} {
				r.Limiter, r.Key, r.Limit, r.TTL = "test", key, limit, time.Hour
				if _, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), r); err != nil {
					t.Errorf("%s: %v: lease %+v: %v", row, limit, r, err)
				}
			}
		}
		execute(t, pool, "select * from pglimit.buckets")
		execute(t, pool, "select * from pglimit.ranges")
		sweepOnce(t, pool, strategy)
	})
}

// SQL says the same as Go of every row that the table takes, also of those that no function of ours writes: a lease
// that had expired before the last write, or numbers at the end of what a bigint holds.
func TestSQLSaysOfEveryRowWhatGoSays(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const now, largest = 1_800_000_000_000_000_000, math.MaxInt64
	times := []int64{1, now - 1_000_000_000, now - 20_000_000, now - 1, now, now + 9_000_000, now + 11_000_000, now + 3_600_000_000_000, largest - 1, largest}
	prices := []int64{1, 1_000_000, 3_600_000_000_000, int64(pglimit.MaxWindow), largest}
	pick := func(of []int64) int64 { return of[rand.IntN(len(of))] }
	for range 1000 {
		b := bucket.Row{FullNS: pick(times), TokenNS: pick(prices), AtNS: pick(times)}
		if rand.IntN(3) > 0 {
			b.LeasedNS, b.UntilNS = pick(prices), pick(times)
		}
		limit := pglimit.Limit{Tokens: 1, Period: time.Duration(pick(prices[:4])), Burst: 1}
		if limit.Period < time.Minute {
			limit.Burst = 1000
		}
		n := 1 + rand.Int64N(limit.Burst)
		at := int64(now) // not before the grants that it counts
		if b.AtNS <= now+bucket.StepNS {
			at = max(now, b.AtNS)
		}
		want := b.Decision(&rate.Request{Limit: limit, Unit: n}, at, 0)
		var left, retry, reset int64
		err := pool.QueryRow(t.Context(), `select remaining, (extract(epoch from retry_after) * 1000000)::bigint, (extract(epoch from reset_after) * 1000000)::bigint
			from pglimit.token_bucket_decision($1, 0, $2, $3, $4, null)`,
			[]int64{now, 0, b.FullNS, b.TokenNS, b.AtNS, b.LeasedNS, b.UntilNS}, n, int64(limit.Token()), int64(limit.Window())).Scan(&left, &retry, &reset)
		if err != nil || left != want.Remaining || retry != want.RetryAfter.Microseconds() || reset != want.ResetAfter.Microseconds() {
			t.Fatalf("%+v, %d of %v: SQL says %d left, %d and %d µs, %v; Go %d, %d and %d", b, n, limit, left, retry, reset, err, want.Remaining, want.RetryAfter.Microseconds(), want.ResetAfter.Microseconds())
		}
	}
}

// Neither do rows of IDs and of denials: whoever does not ask for them does not notice, and they can be reset.
func TestExtremeIDsAndBlocksEndNothing(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	const largest = "9223372036854775807"
	const times = "unnest(array[1, 1000000000, pglimit.clock_ns(), 9000000000000000000, " + largest + "]::bigint[])"
	execute(t, pool, `insert into pglimit.token_bucket_blocks select 'k' || row_number() over (), 'test', n, s, n, u, f, a
		from unnest(array[0, 1, `+largest+`]) n, `+times+` s, `+times+` u, `+times+` f, `+times+` a`)
	execute(t, pool, `insert into pglimit.token_bucket_answers select 'k' || row_number() over (), 'test', 'id', array[a, n, a, n, a, n, n, n], u, u
		from unnest(array[1, `+largest+`]) n, `+times+` u, `+times+` a`)
	execute(t, pool, "select * from pglimit.blocks")
	sweepOnce(t, pool, strategies.TokenBucket{})
	strategy := strategies.TokenBucket{}
	for _, key := range sample(texts(t, pool, "select key from pglimit.token_bucket_blocks"), 100) {
		must(t, strategy.Reset(t.Context(), on(pool), "test", key))
		if d := takeOrBlock(t, pool, key, hours, 1, hourly); !d.Allowed {
			t.Errorf("%s: %+v", key, d)
		}
	}
	if rows, err := strategy.ResetAll(t.Context(), on(pool), "test"); err != nil || rows == 0 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// sample is n of the values, or all of them if there are fewer.
func sample(values []string, n int) []string {
	rand.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	return values[:min(n, len(values))]
}
