package pglimit_test

import (
	"database/sql"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// On a connection or in a transaction of the caller's, a key is not leased however busy it
// is, and nothing is spent of what the limiter itself has leased of it; nor is what is
// remembered asked, nor anything remembered.
func TestASessionOfTheCallersPassesAllStagesBy(t *testing.T) {
	t.Parallel()
	for name, within := range map[string]func(*pglimit.Limiter) *pglimit.Limiter{
		"OnConn":    func(l *pglimit.Limiter) *pglimit.Limiter { return l.On(pglimit.OnConn(new(pgx.Conn))) },
		"InTx":      func(l *pglimit.Limiter) *pglimit.Limiter { return l.On(pglimit.InTx(pglimitTx{})) },
		"OnSQLConn": func(l *pglimit.Limiter) *pglimit.Limiter { return l.On(pglimit.OnSQLConn(new(sql.Conn))) },
		"InSQLTx":   func(l *pglimit.Limiter) *pglimit.Limiter { return l.On(pglimit.InSQLTx(new(sql.Tx))) },
		"theirs":    func(l *pglimit.Limiter) *pglimit.Limiter { return l.On(new(theirSession)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newStore()
				limiter := newLimiter(t, b, func(c *pglimit.Config) {
					c.Leases.On, c.Combine.Off, c.Memory.Off, c.Limit = true, false, false, perHour(1000)
				})
				in := within(limiter)
				trips := func(what string, asks int) {
					t.Helper()
					before := limiter.Stats()
					for range asks {
						d, err := in.Allow(t.Context(), "a")
						if err != nil || d.Source != pglimit.FromDatabase || d.Limit != limiter.Limit() {
							t.Fatalf("%s: %+v, %v", what, d, err)
						}
					}
					if n := limiter.Stats().Since(before); n.RoundTrips != int64(asks) || n.LeaseTrips != 0 || decided(n) != int64(asks) {
						t.Errorf("%s: %+v", what, n)
					}
				}
				trips("a busy key", 20)
				load(t, limiter, time.Millisecond, 100*time.Millisecond)
				if setAside(limiter) == 0 {
					t.Fatal("there is no lease")
				}
				trips("a key that is leased", 3)
				if err := limiter.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				limiter := newLimiter(t, &fake{take: answer(pglimit.Decision{RetryAfter: time.Hour})}, func(c *pglimit.Config) { c.Memory.Off = false })
				asked := func(what string, l *pglimit.Limiter, want int64) {
					t.Helper()
					before := limiter.Stats().RoundTrips
					if _, err := l.Allow(t.Context(), "a"); err != nil {
						t.Error(err)
					}
					if n := limiter.Stats().RoundTrips - before; n != want {
						t.Errorf("%s: %d round trips", what, n)
					}
				}
				asked("within", within(limiter), 1)
				asked("what was denied within is not remembered", limiter, 1)
				asked("it is now", limiter, 0)
				asked("not within", within(limiter), 1)
			})
		})
	}
}

// theirSession is a Session that somebody else has made.
type theirSession struct{ pglimit.Session }

// A Limiter that On made is its parent's for a while: it closes nothing, and counts with it.
func TestASessionOfTheCallersIsNotTheLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := leasing(t, newStore(), perHour(1000))
		load(t, limiter, time.Millisecond, 100*time.Millisecond)
		for name, in := range map[string]*pglimit.Limiter{"OnConn": limiter.On(pglimit.OnConn(new(pgx.Conn))), "InTx": limiter.On(pglimit.InTx(pglimitTx{})), "InTx of InTx": limiter.On(pglimit.InTx(pglimitTx{})).On(pglimit.InTx(pglimitTx{}))} {
			if d, err := in.Allow(t.Context(), "a"); err != nil || !d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
			if stats := in.Stats(); stats != limiter.Stats() || stats.LeasedTokens == 0 || stats.LeaseTrips == 0 {
				t.Errorf("%s: %+v, the parent's %+v", name, stats, limiter.Stats())
			}
			if err := in.Close(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, l := range []*pglimit.Limiter{limiter, in} {
				if d, err := l.Allow(t.Context(), "a"); err != nil || !d.Allowed {
					t.Errorf("%s: after its Close %+v, %v", name, d, err)
				}
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		limiter := newOn(t, deadPool{}, &fake{take: fail(pglimit.ErrUnavailable)}, func(c *pglimit.Config) { c.Breaker.Off = false })
		_, _ = limiter.Allow(t.Context(), "a")
		synctest.Wait()
		if stats := limiter.On(pglimit.InTx(pglimitTx{})).Stats(); stats.Open != 1 || stats != limiter.Stats() {
			t.Errorf("%+v", stats)
		}
	})
}

// No session is an error that says what On needs. That New takes none of them the compiler says.
func TestNoSessionIsAnError(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, &fake{}, nil)
	for name, session := range map[string]pglimit.Session{
		"InTx": pglimit.InTx(nil), "a nil *pgxpool.Tx": pglimit.InTx((*pgxpool.Tx)(nil)), "OnConn": pglimit.OnConn(nil),
		"InSQLTx": pglimit.InSQLTx(nil), "a nil *sql.Tx": pglimit.InSQLTx((*sql.Tx)(nil)), "OnSQLConn": pglimit.OnSQLConn(nil),
		"On": nil, "a nil session": (*theirSession)(nil),
	} {
		_, allow := limiter.On(session).Allow(t.Context(), "k")
		_, each := limiter.On(session).DoEach(t.Context(), wants(t, "a:1 b:1")...)
		for _, err := range []error{allow, each, limiter.On(session).Reset(t.Context(), "k")} {
			if err == nil || !strings.Contains(err.Error(), "On needs a transaction or a connection, and got nil") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, other := range []any{pglimitTx{}, new(pgx.Conn), new(pgxpool.Conn)} {
		if _, is := other.(pglimit.Pool); is {
			t.Errorf("a %T passes for a pool", other)
		}
	}
}
