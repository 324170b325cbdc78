package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// Without a limit, pglimit.allow and pglimit.peek decide by the table, as Go does: of each pair of keys, one is asked in
// Go and the other in SQL, and both get the same.
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
