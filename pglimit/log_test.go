package pglimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// The first failure of a cause is logged at once, those after it once in ten seconds with
// their number; each cause apart; keys only where asked for; and no failure of the caller's own.
func TestFailuresAreLoggedButNotEachOfThem(t *testing.T) {
	t.Parallel()
	t.Run("without keys", func(t *testing.T) { logs(t, false, "") })
	t.Run("with keys", func(t *testing.T) { logs(t, true, " key=somebody") })
}

func logs(t *testing.T, keys bool, key string) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		fault := errDown
		limiter := newLimiter(t, &fake{take: func(context.Context, []rate.Request) ([]pglimit.Decision, error) { return nil, fault }}, func(c *pglimit.Config) {
			c.Logger = timeless(&log)
			c.OnError, c.LogKeys = pglimit.FailOpen, keys
		})
		ask := func(times int, err error) {
			fault = err
			for range times {
				_, _ = limiter.Allow(t.Context(), "somebody")
			}
		}
		ask(100, errDown)
		ask(3, pglimit.ErrNotMigrated)
		_, _ = limiter.Allow(t.Context(), "") // the caller's fault
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, _ = limiter.Allow(gone, "somebody")
		time.Sleep(11 * time.Second)
		ask(2, errDown)
		want := []string{
			`level=WARN msg="pglimit: no decision is known" limiter=api cause=other failures=1 error="` + errDown.Error() + `"` + key,
			`level=ERROR msg="pglimit: no decision is known" limiter=api cause=not_migrated failures=1 error="` + pglimit.ErrNotMigrated.Error() + `"` + key,
			`level=WARN msg="pglimit: no decision is known" limiter=api cause=other failures=100 error="` + errDown.Error() + `"` + key,
		}
		if got := strings.TrimSpace(log.String()); got != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	})
}

// timeless is a Logger whose lines have no time.
func timeless(log *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// A server that comes and goes opens and closes the breaker again and again: that is logged once in ten seconds.
func TestAnOutageThatFlapsIsLoggedOnceInTenSeconds(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		o := newOutage()
		var log bytes.Buffer
		limiter := breaking(t, o, func(c *pglimit.Config) { change(c); c.Logger = timeless(&log) })
		for began := time.Now(); time.Since(began) < 25*time.Second; time.Sleep(10 * time.Millisecond) {
			o.is(time.Since(began)/(500*time.Millisecond)%2 == 0, false)
			_, _ = limiter.Allow(t.Context(), "k")
		}
		var lines []string
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, "no decision is known") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		want := slices.Repeat([]string{
			`level=WARN msg="pglimit: Postgres does not answer; until it does, requests fail at once" limiter=api error="` + pglimit.ErrUnavailable.Error() + `: no sign of life: no connection"`,
			`level=INFO msg="pglimit: Postgres answers again" limiter=api`,
		}, 3)
		if !slices.Equal(lines, want) || o.asked() < 50 {
			t.Errorf("closed %d times, got\n%s\nwant\n%s", o.asked(), strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// An outage that begins within ten seconds of one before is logged when they are over, so that
// the last line does not say that Postgres answers.
func TestTheLastLineOfALongOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutage()
		var log bytes.Buffer
		limiter := breaking(t, o, func(c *pglimit.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		ask := func(milliseconds int) {
			for range milliseconds / 100 {
				_, _ = limiter.Allow(t.Context(), "k")
				time.Sleep(100 * time.Millisecond)
			}
		}
		o.is(true, false)
		ask(1000)
		o.is(false, false)
		ask(1000)
		o.is(true, false)
		ask(60_000)
		lines := strings.Split(log.String(), "\n")
		last := ""
		for _, line := range lines {
			if strings.Contains(line, "answer") && !strings.Contains(line, "cause=") {
				last = line
			}
		}
		if !strings.Contains(last, "does not answer") || strings.Count(log.String(), "does not answer; until") != 2 || strings.Count(log.String(), "answers again") != 1 {
			t.Errorf("%s", log.String())
		}
	})
}
