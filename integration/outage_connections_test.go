package integration

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// newLogin makes a role that may log in and decide. It returns its name, and the URL of its sessions.
func newLogin(t *testing.T, admin *pgxpool.Pool) (role, address string) {
	t.Helper()
	role = newRole(t, databaseURL(admin))
	grants, err := migrations.Grants(role, migrations.ToDecide)
	must(t, err)
	execute(t, admin, grants+"; alter role "+role+" login password 'secret'")
	u, err := url.Parse(databaseURL(admin))
	must(t, err)
	u.User = url.UserPassword(role, "secret")
	return role, u.String()
}

// users are callers of a Limiter, as fast as Postgres answers them.
type users struct {
	limiter             *pglimit.Limiter
	answered            []atomic.Int64 // how many answers each has had, whatever they were
	served, failed      atomic.Int64   // how many were no fallback's, and errors
	last, readOnly, odd atomic.Pointer[error]
	leave               func()
}

func newUsers(t *testing.T, callers, keys int, limiter *pglimit.Limiter) *users {
	t.Helper()
	u := &users{limiter: limiter, answered: make([]atomic.Int64, callers)}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			for n := i; ctx.Err() == nil; n += callers {
				d, err := limiter.Allow(context.WithoutCancel(ctx), "key:"+strconv.Itoa(n%keys))
				u.answered[i].Add(1)
				if err == nil && d.Source != pglimit.FromFallback {
					u.served.Add(1)
				}
				if err != nil {
					u.failed.Add(1)
					u.last.Store(&err)
					if errors.Is(err, pglimit.ErrReadOnly) {
						u.readOnly.Store(&err)
					}
					if !errors.Is(err, pglimit.ErrUnavailable) {
						u.odd.Store(&err)
					}
				}
				if d.Source != pglimit.FromDatabase || err != nil {
					time.Sleep(time.Millisecond) //nolint:forbidigo // what is answered without Postgres costs nothing, and others are to have the machine too
				}
			}
		})
	}
	u.leave = sync.OnceFunc(func() {
		cancel()
		work.Wait()
	})
	t.Cleanup(u.leave)
	return u
}

// await so many more answers of Postgres's.
func (u *users) await(t *testing.T, more int64) {
	t.Helper()
	from := u.served.Load()
	until(t, "callers are served", func() bool { return u.served.Load() >= from+more })
}

// answers waits until each caller has had so many more answers, whatever they are.
func (u *users) answers(t *testing.T, more int64) {
	t.Helper()
	for i := range u.answered {
		from := u.answered[i].Load()
		until(t, "each caller is answered", func() bool { return u.answered[i].Load() >= from+more })
	}
}

// awaitReadOnly waits until somebody has been told that the server cannot write, and which it is.
func (u *users) awaitReadOnly(t *testing.T) {
	t.Helper()
	until(t, "somebody is told that the server is read-only", func() bool { return u.readOnly.Load() != nil })
	if err := *u.readOnly.Load(); !errors.Is(err, pglimit.ErrUnavailable) || !strings.Contains(err.Error(), "server ") {
		t.Error(err)
	}
}

// want that few calls failed, and none of them because of the breaker.
func (u *users) want(t *testing.T, failures int64) {
	t.Helper()
	u.leave()
	stats := u.limiter.Stats()
	t.Logf("%d served, failed %v", u.served.Load(), stats.Failed)
	if u.failed.Load() > failures || stats.Failed[pglimit.CauseBreaker] > 0 || stats.Open > 0 {
		t.Errorf("%d failed, %v, open %d: %v", u.failed.Load(), stats.Failed, stats.Open, *u.last.Load())
	}
}

// pools are kinds of pools, of ten connections.
var pools = map[string]func(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter{
	"pgx": onPool,
	"pgx, alone": func(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter {
		config.Combine.Off = true
		return onPool(t, url, config)
	},
	"pgx, alone, no breaker": func(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter {
		config.Combine.Off, config.Breaker.Off = true, true
		return onPool(t, url, config)
	},
	"database/sql": func(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter {
		config.Combine.Off = true
		return newSQLLimiter(t, openSQL(t, sqlDrivers[0].open, url, 10), config)
	},
	"lib/pq": func(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter {
		config.Combine.Off = true
		return newSQLLimiter(t, openSQL(t, sqlDrivers[1].open, url, 10), config)
	},
}

func onPool(t *testing.T, url string, config pglimit.Config) *pglimit.Limiter {
	t.Helper()
	return newLimiter(t, newPool(t, url, 10), strategies.TokenBucket{}, config)
}

// many is the limiter of users: no call fails because the machine is slow.
var many = pglimit.Config{Name: "api", Limit: plenty, Timeout: time.Minute}

// eachPool runs the test with each kind of pool, and for 32 callers.
func eachPool(t *testing.T, test func(t *testing.T, admin *pgxpool.Pool, role string, start func() *users)) {
	t.Helper()
	for name, open := range pools {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admin := newMigrated(t)
			role, url := newLogin(t, admin)
			test(t, admin, role, func() *users { return newUsers(t, 32, 200, open(t, url, many)) })
		})
	}
}

// A role may have two connections, and the pool asks for ten: its callers share the two.
func TestAPoolWorksWithTheConnectionsItGets(t *testing.T) {
	t.Parallel()
	eachPool(t, func(t *testing.T, admin *pgxpool.Pool, role string, start func() *users) {
		execute(t, admin, "alter role "+role+" connection limit 2")
		u := start()
		u.await(t, 500)
		u.want(t, 0)
	})
}

// An administrator ends all sessions of a healthy server, again and again.
func TestSessionsThatAreEndedAreNoOutage(t *testing.T) {
	t.Parallel()
	eachPool(t, func(t *testing.T, admin *pgxpool.Pool, role string, start func() *users) {
		u, ended := start(), int64(0)
		for range 3 {
			u.await(t, 300)
			ended += query[int64](t, admin, "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = $1", role)
		}
		u.await(t, 300)
		if !strings.HasSuffix(t.Name(), "pq") {
			ended = 0 // lib/pq does not say why the connection broke: the outcome is not known
		}
		u.want(t, ended)
	})
}

// A role that may not write any more may do so later. See also TestAFailover.
func TestConnectionsThatCannotWriteAreReplaced(t *testing.T) {
	t.Parallel()
	admin := newMigrated(t)
	role, url := newLogin(t, admin)
	execute(t, admin, "alter role "+role+" set default_transaction_read_only = on")
	u := newUsers(t, 32, 200, onPool(t, url, many))
	u.awaitReadOnly(t)
	execute(t, admin, "alter role "+role+" reset default_transaction_read_only")
	u.await(t, 500)
}
