package trouble

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// The rows of one key are held; a caller of that key waits, and nobody else does.
func TestACallerOfAnotherKeyIsNotHeldUp(t *testing.T) {
	t.Parallel()
	for _, s := range []rate.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, strategies.ForUpdateNowait{}} {
		t.Run(s.Name(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			target := newTarget(t, pool, s, 20)
			bystander := target
			bystander.Limiter, bystander.Keys = "another limiter of "+t.Name(), nil
			_, err := s.Take(t.Context(), postgres.OnPool(pool), []rate.Request{request(bystander.Limiter, target.Keys[0])})
			must(t, err)

			r := start(t, Plan{LockShare: 0.01, LockFor: time.Hour}, target)
			held := awaitLocked(t, pool, target, 1)[0]
			if also := locked(t, pool, bystander); len(also) != 0 {
				t.Errorf("of another limiter, %q are locked", also)
			}
			for _, key := range target.Keys {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if key == held {
					ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
				}
				decisions, err := s.Take(ctx, postgres.OnPool(pool), []rate.Request{request(target.Limiter, key)})
				cancel()
				switch {
				case key != held && (err != nil || !decisions[0].Allowed):
					t.Errorf("another key: %+v, %v", decisions, err)
				case key == held && err == nil && !decisions[0].Contended:
					t.Errorf("the held key: %+v", decisions)
				}
			}
			report := r.stop(t)
			if left := locked(t, pool, target); len(left) != 0 {
				t.Errorf("afterwards %q are locked", left)
			}
			noSession(t, pool, target)
			if report.LockedKeys != 1 || report.RowLocks != 1 || report.Held <= 0 || report.Held > time.Minute {
				t.Errorf("%+v", report)
			}
		})
	}
}

// Others are locked in turn; keys without a row are not, and tables may have no limiters.
func TestKeysAreLockedInTurn(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	const schema = "trouble_published"
	must(t, published.Create(t.Context(), postgres.OnPool(pool), schema))
	t.Cleanup(func() { must(t, published.Drop(context.Background(), postgres.OnPool(pool), schema)) })
	upsert := published.Strategies(schema)[2]
	target := Target{
		Database: pool.Config().ConnConfig, Application: "trouble in turn",
		Table: schema + ".upsert", Keys: []string{"never asked for"},
	}
	for _, key := range []string{"a", "b", "c"} {
		r := rate.Request{Limiter: "-", Key: key, Limit: rate.Every(time.Hour), Tokens: 1, Unit: 1}
		_, err := upsert.Take(t.Context(), postgres.OnPool(pool), []rate.Request{r})
		must(t, err)
		target.Keys = append(target.Keys, key)
	}
	r := start(t, Plan{LockShare: 0.5, LockFor: 5 * time.Millisecond}, target)
	seen := map[string]bool{}
	for deadline := time.Now().Add(time.Minute); len(seen) < 3 && time.Now().Before(deadline); {
		for _, key := range locked(t, pool, target) {
			seen[key] = true
		}
	}
	report := r.stop(t)
	// The last two locks are not counted if the run ended before their session had heard of them.
	if len(seen) != 3 || report.LockedKeys != 2 || report.RowLocks < 3-2 || report.Held < time.Duration(report.RowLocks-2)*5*time.Millisecond {
		t.Errorf("%v were locked: %+v", seen, report)
	}
}

// Two sessions hold many of the keys that calls for several keys at once want.
func TestNoDeadlockWithCallsForSeveralKeys(t *testing.T) {
	t.Parallel()
	for _, s := range []rate.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, strategies.ForUpdateNowait{}} {
		t.Run(s.Name(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t)
			target := newTarget(t, pool, s, 12)
			other := target
			other.Application = "2nd " + target.Application
			first := start(t, Plan{LockShare: 0.4, LockFor: 3 * time.Millisecond, Seed: 1}, target)
			second := start(t, Plan{LockShare: 0.4, LockFor: 3 * time.Millisecond, Seed: 2}, other)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var calling sync.WaitGroup
			for caller := range uint64(3) {
				calling.Go(func() {
					random := rand.New(rand.NewPCG(caller, 1))
					for ctx.Err() == nil {
						var requests []rate.Request
						for _, i := range random.Perm(len(target.Keys))[:6] {
							requests = append(requests, request(target.Limiter, target.Keys[i]))
						}
						_, err := s.Take(t.Context(), postgres.OnPool(pool), requests)
						var pg *pgconn.PgError
						if errors.As(err, &pg) && pg.Code == deadlockDetected {
							t.Error(err)
						}
					}
				})
			}
			for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
				awaitTransactions(t, pool, target, 12)
				awaitTransactions(t, pool, other, 12)
			}
			cancel()
			calling.Wait()
			if a, b := first.stop(t), second.stop(t); a.RowLocks < 10 || b.RowLocks < 10 || a.Lost+b.Lost > 0 {
				t.Errorf("%+v, %+v", a, b)
			}
			noSession(t, pool, target) // a session that ends has reported its statistics
			noSession(t, pool, other)
			var deadlocks int64
			must(t, pool.QueryRow(t.Context(), "select deadlocks from pg_stat_database where datname = current_database()").Scan(&deadlocks))
			if deadlocks > 0 {
				t.Errorf("%d deadlocks", deadlocks)
			}
		})
	}
}

// A key that callers ask for all the time is locked all the same.
func TestAHotKeyIsLockedToo(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := strategies.TokenBucket{}
	target := newTarget(t, pool, s, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.Take(ctx, postgres.OnPool(pool), []rate.Request{request(target.Limiter, target.Keys[0])})
			}
		})
	}
	r := start(t, Plan{LockShare: 0.01, LockFor: 10 * time.Millisecond}, target)
	for range 5 {
		awaitLocked(t, pool, target, 1)
	}
	cancel()
	calling.Wait()
	if report := r.stop(t); report.RowLocks < 2 {
		t.Errorf("%+v", report)
	}
}

// A session that is ended by somebody else comes back.
func TestALostSessionComesBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	target := newTarget(t, pool, strategies.Upsert{}, 5)
	r := start(t, Plan{LockShare: 1, LockFor: 200 * time.Millisecond}, target)
	awaitLocked(t, pool, target, 5)
	var ended int
	must(t, pool.QueryRow(t.Context(), "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity where application_name = $1", target.Application).Scan(&ended))
	if ended != 1 {
		t.Errorf("%d sessions were ended", ended)
	}
	awaitLocked(t, pool, target, 5)
	if report := r.stop(t); report.Lost != 1 {
		t.Errorf("%+v", report)
	}
}

func TestWhatCannotBeLockedIsAnError(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	target := Target{Database: pool.Config().ConnConfig, Application: "trouble error", Table: "pglimit.no_such_table", Limiter: "l", Keys: []string{"a"}}
	_, err := Plan{LockShare: 1}.Run(t.Context(), target)
	if err == nil || !strings.Contains(err.Error(), "no_such_table") {
		t.Errorf("a table that is not there: %v", err)
	}
	target.Database = target.Database.Copy()
	target.Database.Password = "guess"
	_, err = Plan{LockShare: 1}.Run(t.Context(), target)
	if err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("a wrong password: %v", err)
	}
}

// exclusion_range locks no rows, so locked rows hold none of its callers up: neither a denial nor
// the grant that follows the range that is held.
func TestLocksDoNotTouchExclusionRange(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := strategies.ExclusionRange{}
	target := Target{Database: pool.Config().ConnConfig, Application: "trouble range", Table: "pglimit.exclusion_range", Limiter: "range", Keys: []string{"k"}}
	take := func() rate.Decision {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := rate.Request{Limiter: target.Limiter, Key: "k", Limit: rate.Every(200 * time.Millisecond), Tokens: 1, Unit: 1}
		decisions, err := s.Take(ctx, postgres.OnPool(pool), []rate.Request{r})
		must(t, err)
		return decisions[0]
	}
	take()
	r := start(t, Plan{LockShare: 1, LockFor: time.Hour}, target)
	awaitLocked(t, pool, target, 1)
	for deadline := time.Now().Add(time.Minute); !take().Allowed; {
		if time.Now().After(deadline) {
			t.Fatal("nothing is granted")
		}
	}
	r.stop(t)
}
