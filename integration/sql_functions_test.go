package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/strategytest"
)

// viaSQL is TokenBucket for a program in another language: a single request that is all or
// nothing (and takes nothing ahead), a peek and a reset go to pglimit.allow, peek and reset. The rest goes the Go way.
type viaSQL struct{ strategies.TokenBucket }

func (s viaSQL) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if len(requests) != 1 || requests[0].Tokens != 0 && requests[0].Tokens != requests[0].Unit || !requests[0].Plain() {
		return s.TokenBucket.Take(ctx, session, requests)
	}
	r := requests[0]
	call := "pglimit.allow($1::text, $2::text, $3::text, $4::bigint)"
	if r.Tokens == 0 {
		call = "pglimit.peek($1::text, $2::text, $3::text, $4::bigint)"
	}
	d, err := askSQL(ctx, session, call, r.Limiter, r.Key, r.Limit.String(), max(r.Unit, 1))
	if err == nil { // the functions do not tell
		err = session.Row(ctx, "select exists (select from pglimit.token_bucket where limiter = $1::text and key = $2::text)", []any{r.Limiter, r.Key}, &d.HasRow)
	}
	return []rate.Decision{d}, err
}

func (viaSQL) Reset(ctx context.Context, session rate.Session, limiter, key string) error {
	_, err := session.Exec(ctx, "select pglimit.reset($1::text, $2::text)", limiter, key)
	if strings.HasPrefix(sqlState(err), "22") { // the functions know one field that may be bad here
		err = &rate.RequestError{Field: "Key", Why: err.Error()}
	}
	return err
}

// askSQL is the decision of a call of pglimit.allow or pglimit.peek.
func askSQL(ctx context.Context, session rate.Session, call string, args ...any) (d pglimit.Decision, err error) {
	var retry, reset, at int64
	err = session.Row(ctx, `select allowed, granted, remaining, (extract(epoch from retry_after) * 1000000)::bigint,
		(extract(epoch from reset_after) * 1000000)::bigint, (extract(epoch from at) * 1000000)::bigint from `+call,
		args, &d.Allowed, &d.Granted, &d.Remaining, &retry, &reset, &at)
	d.RetryAfter, d.ResetAfter, d.At = time.Duration(retry)*time.Microsecond, time.Duration(reset)*time.Microsecond, time.UnixMicro(at).UTC()
	return d, err
}

// The functions decide random histories as the model does, like Go does: takes from Go and from
// SQL in turn, leases, refunds, resets, changes of the limit and steps of the clock.
func TestSQLFunctionsDecideAsGoDoes(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	for seed := range replayHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			newReplay(t, pool, viaSQL{}, seed).run(1000)
		})
	}
}

// onlySQL hides what viaSQL has that goes the Go way: leases, groups, IDs and blocks.
type onlySQL struct{ strategies.Strategy }

func (s onlySQL) Check(r *rate.Request) error {
	but := *r
	but.Ahead = 0
	return rate.Unsupported(s.Name(), &but)
}

// Take refuses what Check does: a key that a request with a Block has blocked is denied to all others in SQL, and in Go
// is not.
func (s onlySQL) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if err := rate.ValidateCall(s, requests); err != nil {
		return nil, err
	}
	return s.Strategy.Take(ctx, session, requests)
}

// They keep every promise that a strategy makes.
func TestSQLFunctionsKeepThePromisesOfAStrategy(t *testing.T) {
	t.Parallel()
	strategytest.Run(t, newMigrated, onlySQL{viaSQL{}})
}

// Each argument that is nonsense is refused by name, with a hint, and nothing is taken.
func TestSQLFunctionsRefuseBadInput(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('off', action => 'off', note => 'test')")
	const good = "'10/1s burst 20'"
	both := map[string]string{ // after "pglimit: ", by the arguments
		"null, 'k', " + good:                                          "limiter is null",
		"'', 'k', " + good:                                            "limiter has 0 bytes",
		"repeat('é', 65), 'k', " + good:                               "limiter has 130 bytes: it needs a name of 1 to 128 bytes",
		"'api', null, " + good:                                        "key is null",
		"'api', '', " + good:                                          "key has 0 bytes",
		"'api', repeat('k', 1025), " + good:                           "key has 1025 bytes: it needs a name of 1 to 1024 bytes",
		"'api', 'k'":                                                  `no limit is given, and pglimit.limits has none for limiter "api" and key "k"`,
		"null, '', null":                                              "limiter is null",
		"'off', ''":                                                   "key has 0 bytes",
		"'off', 'k', n => 0":                                          "n is 0: it must be at least 1",
		"'api', 'k', ''":                                              `limit "": it must be tokens/period`,
		"'api', 'k', '10 a second'":                                   `limit "10 a second": it must be tokens/period`,
		"'api', 'k', '10/1s burst lots'":                              `limit "10/1s burst lots": burst "lots" is not a whole number`,
		"'api', 'k', '0/1s'":                                          "tokens is 0: it must be at least 1",
		"'api', 'k', '3000000/1s'":                                    "period is 1000000000ns for 3000000 tokens, which is no whole number of nanoseconds per token: use 999000000ns or 1002000000ns",
		"'api', 'k', " + good + ", null":                              "n is null",
		"'api', 'k', " + good + ", 0":                                 "n is 0: it must be at least 1",
		"'api', 'k', " + good + ", -1":                                "n is -1: it must be at least 1",
		"'api', 'k', " + good + ", 21":                                "n is 21: more than the burst of 20 could never be granted",
		"'api', 'k', " + good + ", 9223372036854775807":               "n is 9223372036854775807: more than the burst",
		"'api', 'k', " + good + ", burst => 5":                        "the limit is given twice",
		"'api', 'k', " + good + ", tokens => 5, period => '1 s'":      "the limit is given twice",
		"'api', 'k', tokens => 10":                                    "period is null",
		"'api', 'k', period => '1 s'":                                 "tokens is null",
		"'api', 'k', burst => 1":                                      "tokens is null",
		"'api', 'k', tokens => 10, period => '0 s'":                   "period is 0ns: it must be longer than zero",
		"'api', 'k', tokens => 10, period => '-1 s'":                  "period is -1000000000ns: it must be longer than zero",
		"'api', 'k', tokens => 10, period => '1 month'":               "period is 1 mon: write it in days",
		"'api', 'k', tokens => 10, period => '1 year -365 days'":      "period is 1 year -365 days: write it in days",
		"'api', 'k', tokens => 10, period => '200000 days'":           "period is 200000 days: it must be at most 200 years",
		"'api', 'k', tokens => 1, period => '73001 days'":             "period is 6307286400000000000ns for 1 tokens: a token must come back within 200 years",
		"'api', 'k', tokens => 0, period => '1 s'":                    "tokens is 0: it must be at least 1",
		"'api', 'k', tokens => -1, period => '1 s'":                   "tokens is -1: it must be at least 1",
		"'api', 'k', tokens => 10, period => '1 s', burst => 0":       "burst is 0: it must be at least 1",
		"'api', 'k', tokens => 9, period => '1 s', burst => -1":       "burst is -1: it must be at least 1",
		"'api', 'k', tokens => 9223372036854775807, period => '1 s'":  "tokens is 9223372036854775807 in 1000000000ns: the rate must be at most 1000000000",
		"'api', 'k', tokens => 10, period => '1 s', n => 11":          "n is 11: more than the burst of 10",
		"'api', 'k', tokens => 1, period => '200 days', burst => 366": "burst is 366, which take longer than 200 years to come back at this rate: it must be at most 365",
	}
	calls := map[string]string{
		"pglimit.reset(null, 'k')":                "limiter is null",
		"pglimit.reset('', 'k')":                  "limiter has 0 bytes",
		"pglimit.reset('api', '')":                "key has 0 bytes",
		"pglimit.reset('api', repeat('k', 1025))": "key has 1025 bytes",
	}
	for arguments, says := range both {
		calls["pglimit.allow("+arguments+")"], calls["pglimit.peek("+arguments+")"] = says, says
	}
	for call, says := range calls {
		_, err := pool.Exec(t.Context(), "select * from "+call)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Message, "pglimit: "+says) || !strings.HasPrefix(pg.Hint, "Nothing was taken. ") {
			t.Errorf("%s: %v, want %s", call, err, says)
		}
	}
	if n := query[int64](t, pool, "select count(*) from pglimit.token_bucket"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// A limit in numbers is the same as in a text.
func TestSQLTakesALimitAsNumbers(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, test := range []struct{ text, tokens, period, burst string }{
		{"10/1s", "10", "1 second", "null"},
		{"10/1s burst 20", "10", "1 second", "20"},
		{"1/day", "1", "1 day", "1"},
		{"1/24h", "1", "1 day", "null"},
		{"1/23h", "1", "1 day -1 hour", "null"},
		{"1/90m burst 7", "1", "1.5 hours", "7"},
		{"10/1000ns", "10", "0.000001 s", "null"},
		{"1/73000day", "1", "73000 days", "null"},
	} {
		numbers := fmt.Sprintf("select r::text from pglimit.request_ns('limiter', 'key', null, 1, %s, '%s', %s) r", test.tokens, test.period, test.burst)
		text := "select r::text from pglimit.request_ns('limiter', 'key', $1, 1, null, null, null) r"
		if got, want := query[string](t, pool, numbers), query[string](t, pool, text, test.text); got != want {
			t.Errorf("%+v: %s, want %s", test, got, want)
		}
	}
}
