package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func lease(t testing.TB, pool *pgxpool.Pool, limit pglimit.Limit, tokens, share int64, settle pglimit.Lease, spent int64) pglimit.Lease {
	t.Helper()
	got, err := (strategies.TokenBucket{}).Lease(t.Context(), on(pool), pglimit.LeaseRequest{
		Limiter: "test", Key: "k", Limit: limit, Tokens: tokens, Share: share, TTL: time.Hour, Settle: settle, Spent: spent,
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// left is what a peek sees.
func left(t testing.TB, pool *pgxpool.Pool, limit pglimit.Limit) int64 {
	t.Helper()
	d, err := (strategies.TokenBucket{}).Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Unit: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return d[0].Remaining
}

// expire ends all leases of the key, as if their time were over.
func expire(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), "update pglimit.token_bucket set until_ns = pglimit.clock_ns() where leased_ns > 0"); err != nil {
		t.Fatal(err)
	}
}

// Takes, leases, settlements, refunds, resets and expiries in any order leave the bucket
// as they do one that is counted on one's fingers.
func TestLeasesAreCountedLikeOnFingers(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	s := strategies.TokenBucket{}
	limit := pglimit.Every(10_000 * time.Hour).WithBurst(100) // nothing flows back
	type held struct {
		pglimit.Lease
		known   bool // to the bucket
		settled bool
	}
	rapid.Check(t, func(r *rapid.T) {
		if err := s.Reset(t.Context(), on(pool), "test", "k"); err != nil {
			r.Fatal(err)
		}
		var used, aside int64
		var leases []held
		r.Repeat(map[string]func(*rapid.T){
			"take": func(r *rapid.T) {
				n := rapid.Int64Range(1, 60).Draw(r, "tokens")
				unit := rapid.SampledFrom([]int64{1, n}).Draw(r, "unit")
				d, err := s.Take(t.Context(), on(pool), []pglimit.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: n, Unit: unit}})
				if err != nil {
					r.Fatal(err)
				}
				want := min(n, 100-used-aside) / unit * unit
				if d[0].Granted != want {
					r.Fatalf("granted %d, want %d", d[0].Granted, want)
				}
				used += want
			},
			"many": func(r *rapid.T) {
				n := rapid.Int64Range(1, 60).Draw(r, "tokens")
				requests := []pglimit.Request{
					{Limiter: "test", Key: "k", Limit: limit, Tokens: n, Unit: n},
					{Limiter: "test", Key: "other", Limit: limit, Tokens: 0, Unit: 1},
					{Limiter: "test", Key: "k", Limit: limit, Tokens: 3, Unit: 3},
				}
				d, err := taken(pool, func() ([]pglimit.Decision, error) { return s.Take(t.Context(), on(pool), requests) })
				if err != nil {
					r.Fatal(err)
				}
				for _, i := range []int{0, 2} {
					want := []int64{n, 0, 3}[i]
					if want > 100-used-aside {
						want = 0
					}
					if d[i].Granted != want {
						r.Fatalf("request %d: granted %d, want %d", i, d[i].Granted, want)
					}
					used += want
				}
			},
			"lease": func(r *rapid.T) {
				n, share := rapid.Int64Range(0, 80).Draw(r, "tokens"), rapid.Int64Range(1, 4).Draw(r, "share")
				var old held
				var spent int64
				if len(leases) > 0 && rapid.Bool().Draw(r, "settle") {
					i := rapid.IntRange(0, len(leases)-1).Draw(r, "which")
					// The bucket has a sum, not a list: of a lease that was settled it knows only as
					// long as there is no other.
					if old = leases[i]; old.known || !old.settled || aside == 0 {
						spent = rapid.Int64Range(0, old.Tokens).Draw(r, "spent")
						leases[i].known, leases[i].settled = false, true
					} else {
						old = held{}
					}
				}
				if old.known {
					aside, used = aside-old.Tokens, used+spent
				}
				want := min(n, (100-used-aside)/share)
				got := lease(t, pool, limit, n, share, old.Lease, spent)
				if got.Tokens != want {
					r.Fatalf("leased %d, want %d", got.Tokens, want)
				}
				aside += want
				if got.Left.Remaining != 100-used-aside {
					r.Fatalf("%d left, want %d", got.Left.Remaining, 100-used-aside)
				}
				if want > 0 {
					leases = append(leases, held{Lease: got, known: true})
				}
			},
			"expire": func(*rapid.T) {
				expire(t, pool)
				used, aside = used+aside, 0
				for i := range leases {
					leases[i].known = false
					leases[i].Until = leases[i].At
				}
			},
			"reset": func(r *rapid.T) {
				if err := s.Reset(t.Context(), on(pool), "test", "k"); err != nil {
					r.Fatal(err)
				}
				used, aside = 0, 0
				for i := range leases {
					leases[i].known = false
				}
			},
			"": func(r *rapid.T) {
				if got := left(t, pool, limit); got != 100-used-aside {
					r.Fatalf("%d left, want %d: %d used, %d set aside", got, 100-used-aside, used, aside)
				}
			},
		})
	})
}

// A lease that is over, or whose bucket was reset, is settled: to settle it takes nothing
// out of what others have leased since.
func TestALeaseThatIsOverIsLeftAlone(t *testing.T) {
	t.Parallel()
	limit := hours.WithBurst(100)
	for name, end := range map[string]func(t *testing.T, pool *pgxpool.Pool, old *pglimit.Lease){
		"expired": func(t *testing.T, pool *pgxpool.Pool, old *pglimit.Lease) {
			expire(t, pool)
			old.Until = old.At
		},
		"reset": func(t *testing.T, pool *pgxpool.Pool, _ *pglimit.Lease) {
			if err := (strategies.TokenBucket{}).Reset(t.Context(), on(pool), "test", "k"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			old := lease(t, pool, limit, 10, 1, pglimit.Lease{}, 0)
			end(t, pool, &old)
			lease(t, pool, limit, 20, 1, pglimit.Lease{}, 0)
			before := left(t, pool, limit)
			lease(t, pool, limit, 0, 1, old, 0)
			if after := left(t, pool, limit); after != before {
				t.Errorf("%d were left, %d are after it was settled", before, after)
			}
		})
	}
}

// The database's clock has stepped back by two hours since a lease was taken and was over:
// the next lease lasts as long as any.
func TestALeaseLastsThoughTheClockHasSteppedBack(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	limit := pglimit.PerHour(100)
	lease(t, pool, limit, 10, 4, pglimit.Lease{}, 0)
	execute(t, pool, "update pglimit.token_bucket set until_ns = at_ns")
	age(t, pool, strategies.TokenBucket{}, -2*time.Hour)
	got := lease(t, pool, limit, 10, 4, pglimit.Lease{}, 0)
	if got.Tokens != 10 || got.Until.Sub(got.At) != time.Hour {
		t.Errorf("of %d tokens, from %v until %v", got.Tokens, got.At, got.Until)
	}
	if lease(t, pool, limit, 0, 4, got, 3); left(t, pool, limit) != 100-10-3 {
		t.Errorf("%d are left", left(t, pool, limit))
	}
}
