package integration

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Where a strategy says that it is ready, it grants; where not, it does not, for the same reason. (The owner of the
// tables passes by row security that is not forced.) It takes nothing to find out.
func TestReadyMeansThatItCouldGrant(t *testing.T) {
	t.Parallel()
	for _, strategy := range strategies.All() {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			table := "pglimit." + strategy.Name()
			admin := newMigrated(t)
			url := databaseURL(admin)
			role := newRole(t, url)
			grants, err := migrations.Grants(role, migrations.ToDecide)
			must(t, err)
			reads, err := migrations.Grants(role, migrations.ToRead)
			must(t, err)
			for _, test := range []struct {
				name, do, undo string
				want           error
			}{
				{"nothing granted", "select", "select", rate.ErrPermission},
				{"may only read", reads, "select", rate.ErrPermission},
				{"all granted", grants, "select", nil},
				{"may not insert", "revoke insert on " + table + " from " + role, grants, rate.ErrPermission},
				{"row security", "alter table " + table + " enable row level security", "alter table " + table + " disable row level security", rate.ErrPermission},
				{"read-only", "alter database " + admin.Config().ConnConfig.Database + " set default_transaction_read_only = on", "set default_transaction_read_only = off; alter database " + admin.Config().ConnConfig.Database + " reset default_transaction_read_only", rate.ErrReadOnly},
				{"all granted again", "select", "select", nil},
			} {
				execute(t, admin, test.do)
				on := postgres.OnPool(migrationPool(t, url, as(role)))
				ready := strategy.(interface {
					Ready(context.Context, rate.Session) error
				}).Ready(t.Context(), on)
				_, took := strategy.Take(t.Context(), on, asks(pglimit.PerSecond(1000).WithBurst(1), test.name))
				for what, err := range map[string]error{"ready": ready, "took": took} {
					if (err == nil) != (test.want == nil) || !errors.Is(err, test.want) {
						t.Errorf("%s: %s %v, want %v", test.name, what, err, test.want)
					}
				}
				execute(t, admin, test.undo)
			}
		})
	}
}

// A role that row security hides rows from is not told that a bucket is full, nor that it was reset, paid back or
// swept.
func TestWhatIsHiddenIsNotSaid(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, admin *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(hours.Period)
		taken, err := newLimiter(t, admin, strategy, pglimit.Config{Name: "test", Limit: limit}).Allow(t.Context(), "k")
		must(t, err)
		url := databaseURL(admin)
		role := newRole(t, url)
		grants, err := migrations.Grants(role, migrations.ToDecide)
		must(t, err)
		execute(t, admin, grants+"; alter table pglimit."+strategy.Name()+" enable row level security")
		pool := migrationPool(t, url, as(role))
		limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test", Limit: limit})
		for name, act := range map[string]func() error{
			"peek":      func() error { return second(limiter.Peek(t.Context(), "k")) },
			"reset":     func() error { return limiter.Reset(t.Context(), "k") },
			"reset all": func() error { return second(limiter.ResetAll(t.Context())) },
			"allow":     func() error { return second(limiter.Allow(t.Context(), "k")) },
			"refund":    func() error { return limiter.Refund(t.Context(), taken, 1) },
			"sweep":     func() error { return second(strategy.Sweep(t.Context(), postgres.OnPool(pool), 0, 1000)) },
		} {
			if err := act(); !errors.Is(err, pglimit.ErrPermission) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if strategy.Name() == "token_bucket" {
			for _, sql := range []string{"select pglimit.peek('test', 'k', '1/1h')", "select pglimit.reset('test', 'k')"} {
				_, err := pool.Exec(t.Context(), sql)
				wantCode(t, err, "42501")
			}
		}
		if d := take(t, admin, strategy, "k", limit); d.Allowed {
			t.Error("it was reset")
		}
	})
}

// A service starts before its database does: the Limiter is there, and answers as it does in
// an outage; the migration waits; and from then on, Postgres decides.
func TestAServiceStartsBeforeItsDatabase(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(newDatabase(t))
	must(t, err)
	dial, up, tried := config.ConnConfig.DialFunc, atomic.Bool{}, make(chan struct{}, 1000)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		tried <- struct{}{}
		if !up.Load() {
			return nil, errors.New("connection refused, says the test")
		}
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)

	migrated := make(chan error, 1)
	go func() { migrated <- migrations.Up(soon(t, time.Minute), pool, migrations.WaitForServer()) }()
	limiter := newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: hours, OnError: pglimit.FailOpen})
	<-tried
	for range 10 {
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || d.Source != pglimit.FromFallback {
			t.Errorf("before: %+v, %v", d, err)
		}
	}
	if err := migrations.Up(t.Context(), pool); err == nil {
		t.Error("a migration that is not to wait does")
	}
	select {
	case err := <-migrated:
		t.Fatalf("the migration has ended: %v", err)
	default:
	}
	up.Store(true)
	must(t, <-migrated)
	for {
		d, err := limiter.Allow(t.Context(), "k")
		must(t, err)
		if d.Source == pglimit.FromDatabase && d.Allowed {
			break
		}
	}

	// A password that is wrong does not become right.
	config.ConnConfig.User = "nobody_of_that_name"
	stranger, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(stranger.Close)
	if err := migrations.Up(soon(t, time.Minute), stranger, migrations.WaitForServer()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("as a stranger: %v", err)
	}
}
