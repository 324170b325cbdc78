package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// The usual case of token_bucket_take decides, tells and writes what token_bucket_decide does for any case: for any row and any
// request, on a clock that stands still.
func TestTheUsualCaseIsDecidedAsAnyIs(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	execute(t, pool, "set enable_seqscan = off")
	execute(t, pool, "set jit = off")
	random := rand.New(rand.NewPCG(27, 1))
	now := time.Date(2026, time.March, 14, 15, 9, 26, 0, time.UTC).UnixNano()
	execute(t, pool, "select set_config('pglimit_test.clock_ns', $1::bigint::text, false)", now)
	prices := []int64{int64(time.Second), int64(time.Minute), 1}
	calendars := []*string{nil, nil, new("day utc"), new("hour utc")}
	const second = int64(time.Second)
	for n := range 2000 {
		at := now - random.Int64N(100*second)
		switch random.IntN(4) {
		case 0: // the clock has stepped back
			at = now + random.Int64N(100*second)
		case 1: // by a long time
			at = now + random.Int64N(3*24*3600*second)
		}
		full := max(1, at+random.Int64N(20*second)-5*second)
		price, leased, until := prices[random.IntN(3)], (*int64)(nil), (*int64)(nil)
		switch random.IntN(4) {
		case 0: // a lease
			leased, until = new(1+random.Int64N(5*second)), new(now+random.Int64N(20*second)-10*second)
		case 1: // a calendar window
			ends := query[int64](t, pool, "select pglimit.window_end_ns('day utc', $1)", at)
			price, until, full = 1, new(ends), ends+random.Int64N(8)
		}
		none := random.IntN(6) == 0
		calendar := calendars[random.IntN(4)]
		asked, burst := prices[random.IntN(2)], 1+random.Int64N(10)
		if calendar != nil {
			asked = 1
		}
		unit := 1 + random.Int64N(burst)
		want, ahead := unit*random.Int64N(3), []int64{0, 0, random.Int64N(10 * second)}[random.IntN(3)]
		if calendar != nil {
			ahead = 0
		}
		outcome := func(decide string) string {
			execute(t, pool, "delete from pglimit.token_bucket")
			if !none {
				execute(t, pool, "insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns, leased_ns, until_ns) values ('k', 'test', $1, $2, $3, $4, $5)", full, price, at, leased, until)
			}
			told := query[[]int64](t, pool, decide, asked, asked*burst, want, unit, ahead, calendar)
			row := query[string](t, pool, "select coalesce(min((t.full_ns, t.token_ns, t.at_ns, t.leased_ns, t.until_ns)::text), 'none') from pglimit.token_bucket t")
			return fmt.Sprint(told, row)
		}
		one := outcome("select pglimit.token_bucket_take('k', 'test', $1, $2, $3, $4, null, $6, false, $5)")
		many := outcome(`
			select array[b[1][2], b[1][3], b[1][4], b[1][5], b[1][6], b[1][7], b[1][8]] from pglimit.token_bucket_decide(
				array['k'], array['test'], array[$1::bigint], array[$2::bigint], null, array[$3::bigint], array[$4::bigint], array[$5::bigint], null, true,
				case when $6::text is not null then array[$6::text] end) d(grants, b)`)
		if one != many {
			t.Fatalf("%d: full %d, price %d, at %d, leased %v, until %v, none %v; asked %d x %d, want %d by %d, ahead %d, calendar %v\none  %s\nmany %s",
				n, full-now, price, at-now, leased, until, none, asked, burst, want, unit, ahead, calendar, one, many)
		}
	}
}
