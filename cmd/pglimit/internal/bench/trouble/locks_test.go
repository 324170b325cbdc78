package trouble

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// The rows of one key are held; a caller of that key waits, and nobody else does.
func TestACallerOfAnotherKeyIsNotHeldUp(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, s := range []rate.Strategy{strategies.TokenBucket{}, strategies.Upsert{}, strategies.ForUpdateNowait{}} {
		t.Run(s.Name(), func(t *testing.T) {
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
