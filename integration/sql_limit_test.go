package integration

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// readLimit reads a limit in SQL, and returns the price of a token, the window, and the calendar.
func readLimit(t *testing.T, db database, text string) (token, window time.Duration, calendar string, err error) {
	t.Helper()
	err = db.QueryRow(t.Context(), "select token_ns, window_ns, coalesce(calendar, '') from pglimit.request_ns('limiter', 'key', $1, 1, null, null, null)", text).
		Scan(&token, &window, &calendar)
	return token, window, calendar, err
}

// sameLimit reads a text in SQL and in Go: the same limit, or an error of both. The error
// says the same, up to how it writes a time and where it writes the limit.
func sameLimit(t *testing.T, db database, text string) (problem string) {
	t.Helper()
	want, wantErr := pglimit.ParseLimit(text)
	token, window, calendar, err := readLimit(t, db, text)
	switch {
	case wantErr == nil && err == nil:
		if token != want.Token() || window != want.Window() || calendar != want.Calendar {
			return fmt.Sprintf("has a window of %v %s, and a token takes %v", window, calendar, token)
		}
	case wantErr == nil:
		return "is refused: " + err.Error()
	case err == nil:
		return "is read, a token takes " + token.String() + ", and in Go " + wantErr.Error()
	default:
		return sameRefusal(err, wantErr)
	}
	return ""
}

func sameRefusal(err, inGo error) (problem string) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "22023" || !strings.HasPrefix(pg.Hint, "Nothing was taken.") {
		return "fails with " + err.Error()
	}
	var limit *pglimit.LimitError
	if errors.As(inGo, &limit) && limit.Limit.Calendar == "" && !strings.HasPrefix(pg.Message, "pglimit: "+strings.ToLower(limit.Field)+" is ") {
		return "is refused with " + pg.Message + ", and in Go with " + inGo.Error()
	}
	return ""
}

func TestSQLReadsALimitAsGoDoes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	var texts []string
	for _, unit := range []string{
		"ns", "us", "ms", "millisecond", "milliseconds", "s", "sec", "secs", "second", "seconds", "m", "min", "mins", "minute", "minutes", "h", "hr", "hour", "hours",
		"d", "day", "days", "w", "week", "weeks", "month", "months", "y", "year", "years", "fortnight", "",
	} {
		for _, written := range []string{unit, strings.ToUpper(unit), strings.ToUpper(unit[:min(1, len(unit))]) + unit[min(1, len(unit)):], unit + "1" + unit} {
			numbers := []string{"", "1", "01", "2", "15", "0", "-1", "+1", "1.5", ".5", "1_0", "1 ", "106751", "106752", "9223372036854775807", "9223372036854775808", "00000000000000000000001"}
			if written != unit { // the unit is at fault
				numbers = numbers[:2]
			}
			for _, number := range numbers {
				texts = append(texts, "1/"+number+written, "1/"+number+written+" fixed", "2/"+number+written+" from 2 Europe/Berlin burst 1")
			}
		}
	}
	for _, space := range []string{" ", "  ", "\t", "\n", "\v", "\r", "\x1f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\ufeff"} {
		for _, text := range []string{"_1/s", "1/s_", "1_/s", "1/_s", "1/1_s", "1/s_burst 5", "1/s burst_5", "1/day_fixed", "1/day from_1", "1/month_from 2", "1/month from 2_UTC", "1/day _", "1/month _from 2", "1/month from _2"} {
			texts = append(texts, strings.ReplaceAll(text, "_", space))
		}
	}
	for _, day := range []string{"0", "1", "01", "9", "10", "29", "30", "31", "32", "100", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "Monday", "day", "funday", "fixed", "burst"} {
		texts = append(texts, "1/week from "+day, "1/month from "+day, "1/day from "+day+" fixed", "1/year from "+day+" Europe/Berlin burst 1")
	}
	for _, zone := range []string{"fixed", "Fixed", "UTC", "utc", "Utc", "UTC+2", "CET", "Etc/GMT+1", "etc/gmt+1", "etc/GMT", "Europe/Berlin+2", "America/Port-au-Prince", "America/Argentina/Salta", "a/b", "/", "a/", "from", "burst", "Bürst/Ü", "Europe Berlin"} {
		texts = append(texts, "1/day "+zone, "1/month from 3 "+zone+" burst 1", "1/s "+zone+" from 3", "1/s burst 3 "+zone)
	}
	for _, text := range append(texts,
		"", " ", "/", "10", "10 burst 5", "/1s", "many/1s", "1.5/1s", "1.5/1s burst 5", "1_000/s", "10/1s/2", "10/1s burst", "10/1s burst lots", "10/1s burst 5 burst 6", "10/1s burst 0", "10/1s burst -1", "10/1s burst 5; drop it",
		"10/1s BURST 5", "10/1s burst 0x10", "10/1sburst5", "burst 5", "10burst/s", "burst/burst burst burst", "10/s burst burst 5", "1/1µs", "1/1μs", "10/s from burst 5", "\x01/\u00ff", "10/1s\nburst 5\nand more", "10/1s'", `10/1s\`, "\u017f/\u017f", "10/\u017fecond fixed",
		"9223372036854775807/9223372036854775807ns burst 1", "9223372036854775807/s", "9223372036854775808/s", "99999999999999999999/s", "-9223372036854775808/s", "+5/s", "000000000000000000000000000001/s burst 0000000000000000000000000000005",
		"0/1s", "-1/1s", "2/1ns", "1/1s burst 9000000000000000", "3000000/s", "999999937/s", "999983/s", "1000001/s", "1000000001/s", strings.Repeat("1", 200_000)+"/s",
		"1/73000day", "1/73001day", "200/73001day", "1/365day burst 200", "1/365day burst 201", "1000000000/s burst 6307200000000000000", "1000000000/s burst 6307200000000000001",
	) {
		if problem := sameLimit(t, pool, text); problem != "" {
			t.Errorf("%q %s", text, problem)
		}
	}
}

// The message of a refused limit is Go's.
func TestSQLRefusesALimitInTheWordsOfGo(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	for _, text := range []string{
		"", "10", "/1s", "Many/1s", "10/", "10/1 Fortnight", "10/1M", "10/1.5h", "10/1m30s", "10/2month", "10/min fixed", "10/day CET", "10/1s burst", "10/1s burst \"5\"", "10/1s burst 5\nand",
	} {
		_, want := pglimit.ParseLimit(text)
		_, _, _, err := readLimit(t, pool, text)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.HasPrefix(want.Error(), pg.Message+" (write it like") || !strings.Contains(pg.Hint, "100/1m burst 20") {
			t.Errorf("%q: %v, want %v", text, err, want)
		}
	}
}

// limitText is a limit as somebody may write it, with or without a mistake.
var limitText = rapid.Custom(func(t *rapid.T) string {
	oneOf := func(label string, words ...string) string { return rapid.SampledFrom(words).Draw(t, label) }
	space := func() string {
		return oneOf("space", "", "", "", "", " ", "  ", "\t", "\n", "\u00a0", "\u2028", "\ufeff")
	}
	gap := func() string { return oneOf("gap", " ", " ", " ", " ", "  ", "\t", "\u00a0", "\u3000", "\x1f", "") }
	count := func() string {
		return oneOf("sign", "", "", "", "", "", "", "+", "-") + rapid.StringMatching(`[0-9]{1,4}|[1-9][0-9]{0,9}|[0-9]{1,21}|1_000_000|0`).Draw(t, "count")
	}
	period := ""
	for range oneOf("parts", "1", "1", "1", "11") {
		period += rapid.StringMatching(`||1|[0-9]{1,3}|[0-9]{1,3}|[0-9]{0,3}\.[0-9]{0,3}|[0-9]{1,21}`).Draw(t, "number") +
			oneOf("unit", "ns", "us", "ms", "millisecond", "s", "sec", "seconds", "m", "min", "minute", "minutes", "h", "H", "hour", "d", "day", "days", "week", "Week", "month", "month", "MONTH", "months", "year", "x", "", "\u017fecond")
	}
	if rapid.Bool().Draw(t, "calendar") {
		for range rapid.IntRange(0, 3).Draw(t, "words") {
			period += gap() + oneOf("word", "from", "from", "FROM", "15", "0", "031", "monday", "Sunday", "fixed", "utc", "UTC", "Europe/Berlin", "Etc/GMT+1", "ETC/GMT", "Nowhere/City", "europe/berlin")
		}
	}
	text := space() + count() + space() + oneOf("slash", "/", "/", "/", "/", "") + space() + oneOf("minus", "", "", "", "", "", "-") + period
	if rapid.Bool().Draw(t, "burst") {
		text += gap() + oneOf("word", "burst", "burst", "burst", "burst", "Burst", "burts") + gap() + count()
	}
	text += space()
	return text
})

func TestSQLReadsAnyLimitAsGoDoes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	texts := rapid.OneOf(limitText, limitText, limitText, rapid.String().Filter(func(s string) bool { return !strings.ContainsRune(s, 0) }))
	rapid.Check(t, func(r *rapid.T) {
		for _, text := range rapid.SliceOfN(texts, 10, 10).Draw(r, "texts") {
			if problem := sameLimit(t, pool, text); problem != "" {
				r.Fatalf("%q %s", text, problem)
			}
		}
	})
}

// Limits in numbers are valid in SQL if they are in Go, at the same price of a token.
func TestSQLValidatesALimitAsGoDoes(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	number := rapid.OneOf(
		rapid.Int64Range(-1, 1000), rapid.Int64Range(1, pglimit.MaxRate), rapid.Int64Range(1, math.MaxInt64),
		rapid.SampledFrom([]int64{1 << 61, 1 << 62, math.MaxInt64, math.MinInt64, int64(time.Second), int64(time.Hour), int64(pglimit.MaxWindow), int64(pglimit.MaxWindow) + 1}),
	)
	rapid.Check(t, func(r *rapid.T) {
		l := pglimit.Limit{Tokens: number.Draw(r, "tokens"), Period: time.Duration(number.Draw(r, "period")), Burst: number.Draw(r, "burst")}
		if rapid.Bool().Draw(r, "at the longest window") && l.Tokens > 0 && l.Period > 0 && l.Token() > 0 {
			l.Burst = int64(pglimit.MaxWindow/l.Token()) + rapid.Int64Range(-1, 1).Draw(r, "by")
		}
		text := fmt.Sprintf("%d/%dns burst %d", l.Tokens, l.Period.Nanoseconds(), l.Burst)
		if problem := sameLimit(t, pool, text); problem != "" {
			r.Fatalf("%q %s", text, problem)
		}
	})
}

// Without a limit, pglimit.allow and pglimit.peek decide by the table, as Go does: of each pair of keys, one is asked
// in Go and the other in SQL, and both get the same.
func TestSQLTakesTheLimitFromTheTable(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	for _, rule := range []string{
		"'api', '3/1h'", "'api', '2/1h', prefix => 'org:'", "'api', '4/1h', prefix => 'org:ä:'", "'api', '5/1h', key => 'org:ä: in Go'", "'api', '5/1h', key => 'org:ä: in SQL'",
		"'api', '1/1h', action => 'observe'", "'api', '6/1h', action => 'observe', prefix => 'org:'", "'api', action => 'deny', prefix => 'bot'",
		"'api', '9/1h', prefix => 'disabled', enabled => false",
		"'api', action => 'deny', prefix => 'until', expires_at => now() + interval '2 hours'", "'api', action => 'allow', prefix => 'us'",
		"'login', '9/1h'", "'login', action => 'off'",
	} {
		execute(t, pool, "select pglimit.set_limit("+rule+", note => 'test')")
	}
	execute(t, pool, "insert into pglimit.limits (limiter, action, prefix, expires_at, note) values ('api', 'deny', 'ended', now(), 'test')")
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, Limits: pglimit.LimitsFrom(pool, pglimit.LimitsConfig{}), Memory: pglimit.Memory{Off: true}})
	for _, of := range []string{"api/k", "api/org:", "api/org:ä", "api/org:ä:", "api/org:ä: ", "api/bot", "api/ended", "api/disabled", "api/until", "api/us", "login/k"} {
		name, key, _ := strings.Cut(of, "/")
		for i := range int64(9) {
			n, peek := 1+i%2, i%4 == 3
			r, call := pglimit.Request{Limiter: name, Key: key + "in Go", Tokens: n}, "allow($1, $2, n => $3)"
			if peek {
				r.Tokens, r.Unit, call = 0, n, "peek($1, $2, n => $3)"
			}
			want, err := limiter.Do(t.Context(), r)
			must(t, err)
			var got pglimit.Decision
			var retry, reset int64
			var observed *bool
			must(t, pool.QueryRow(t.Context(), `select allowed, granted, coalesce(remaining, 0), (extract(epoch from retry_after) * 1000000)::bigint,
				(extract(epoch from reset_after) * 1000000)::bigint, at, observed from pglimit.`+call, name, key+"in SQL", n).
				Scan(&got.Allowed, &got.Granted, &got.Remaining, &retry, &reset, &got.At, &observed))
			got.RetryAfter, got.ResetAfter = time.Duration(retry)*time.Microsecond, time.Duration(reset)*time.Microsecond
			if want.Source == pglimit.FromRule && want.Allowed { // Go has a limit of its own, too
				want.Remaining = 0
			}
			if left := got.RetryAfter; key == "until" && left <= 2*time.Hour && left > 2*time.Hour-time.Minute { // by the clock that is not stopped
				got.RetryAfter, got.ResetAfter = want.RetryAfter, want.ResetAfter
			}
			said := func(d pglimit.Decision) string {
				return fmt.Sprint(d.Allowed, d.Granted, d.Remaining, d.RetryAfter, d.ResetAfter)
			}
			if said(got) != said(want) || (observed == nil) != (want.Observed == nil) || observed != nil && *observed != want.Observed.Allowed {
				t.Errorf("%s, %d of %d, peek %v: %+v, observed %v; want %+v, observed %+v", of, i, n, peek, got, observed, want, want.Observed)
			}
		}
	}
}

// More than the burst of a rule is refused in SQL, as in Go, and not counted where it is only observed.
func TestSQLRefusesMoreThanTheBurstOfARule(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, "select pglimit.set_limit('api', '3/1h', note => 'test'), pglimit.set_limit('api', '2/1h', action => 'observe', note => 'test')")
	for _, test := range []struct {
		function string
		n        int64
		want     string // allowed, granted, observed
	}{
		{"peek", 4, "22023"}, {"allow", 4, "22023"}, {"allow", 3, "t 3 f"}, {"peek", 1, "f 0 -"}, {"allow", 1, "f 0 t"},
	} {
		var got string
		err := pool.QueryRow(t.Context(), "select format('%s %s %s', allowed, granted, coalesce(observed::text::char, '-')) from pglimit."+test.function+"('api', 'k', n => $1)", test.n).Scan(&got)
		if err != nil {
			got = sqlState(err)
		}
		if got != test.want {
			t.Errorf("%s of %d: %s, want %s", test.function, test.n, got, test.want)
		}
	}
}
