package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

// waitedLimit is fast: a token comes back in 10 ms, so five while a call waits 50 ms.
var waitedLimit = pglimit.PerSecond(100).WithBurst(10)

// waitedCalls are the ways to ask for tokens of one bucket. Each returns what it was
// granted, and when.
var waitedCalls = []struct {
	name       string
	want, unit int64
	lease      bool
	requests   []int64 // the tokens of each; none: want in units of unit
}{
	{name: "all or nothing", want: 5, unit: 5},
	{name: "as much as there is", want: 10, unit: 1},
	{name: "several in turn", want: 5, unit: 1, requests: []int64{1, 1, 1, 1, 1}},
	{name: "a lease", want: 5, unit: 1, lease: true},
}

// A call that waited 50 ms for the row is decided by the clock behind the lock: it gets what
// flowed back meanwhile, and afterwards no more is to be had than if it had come late.
func TestACallThatWaitedIsDecidedAsOfAfterwards(t *testing.T) {
	t.Parallel()
	for _, c := range waitedCalls {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool, s := newMigrated(t), strategies.TokenBucket{}
			ask := func(key string, tokens, unit int64) pglimit.Request {
				return pglimit.Request{Limiter: "test", Key: key, Limit: waitedLimit, Tokens: tokens, Unit: unit}
			}
			call := func(key string) (granted int64, at time.Time) {
				if c.lease {
					got, err := s.Lease(t.Context(), on(pool), pglimit.LeaseRequest{
						Limiter: "test", Key: key, Limit: waitedLimit, Tokens: c.want, Share: 1, TTL: time.Hour,
					})
					if err != nil {
						t.Error(err)
					}
					return got.Tokens, got.At
				}
				requests := []pglimit.Request{ask(key, c.want, c.unit)}
				if c.requests != nil {
					requests = nil
				}
				for _, tokens := range c.requests {
					requests = append(requests, ask(key, tokens, tokens))
				}
				decisions, err := s.Take(t.Context(), on(pool), requests)
				if err != nil {
					t.Error(err)
				}
				for _, d := range decisions {
					granted, at = granted+d.Granted, d.At
				}
				return granted, at
			}
			for _, holder := range []struct {
				name string
				take int64 // by the one who holds the row
				late bool  // just before the end
			}{
				{"takes none", 0, false}, {"takes half", 5, false}, {"takes all", 10, false}, {"takes all at the end", 10, true},
			} {
				waitedFor(t, pool, holder.name, holder.take, holder.late, c.want, c.unit, call)
			}
		})
	}
}

// waitedFor holds the row of a full bucket while the call waits, and checks what the call and
// those behind it get.
func waitedFor(t *testing.T, pool *pgxpool.Pool, key string, take int64, late bool, want, unit int64, call func(key string) (int64, time.Time)) {
	t.Helper()
	s := strategies.TokenBucket{}
	ask := func(db database, tokens, unit int64) pglimit.Decision {
		t.Helper()
		decisions, err := s.Take(t.Context(), on(db), []pglimit.Request{{Limiter: "test", Key: key, Limit: waitedLimit, Tokens: tokens, Unit: unit}})
		if err != nil {
			t.Fatal(err)
		}
		return decisions[0]
	}
	ask(pool, 1, 1)
	execute(t, pool, "update pglimit.token_bucket set full_ns = at_ns where key = $1", key) // nothing is owed

	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.token_bucket where key = $1 for update", key)
	taken, over := query[time.Time](t, pool, "select clock_timestamp()"), time.Time{}
	if take > 0 && !late {
		taken = ask(holder, take, take).At
	}
	var granted int64
	var at time.Time
	whileBlocked(t, pool, func() { granted, at = call(key) }, func() {
		passes(t, pool, 50*time.Millisecond)
		if take > 0 && late {
			taken = ask(holder, take, take).At
		}
		over = query[time.Time](t, pool, "select clock_timestamp()")
		commit(t, holder)
	})
	rest := ask(pool, 10, 1)

	flowed := func(from, to time.Time) int64 { return int64(to.Sub(from) / waitedLimit.Token()) }
	least := min(want, 10, 10-take+flowed(taken, over)) / unit * unit
	if granted < least || granted > want || at.Before(over) {
		t.Errorf("the holder %s: %d granted, want at least %d, dated %v after it could go on", key, granted, least, at.Sub(over))
	}
	// Since the row was free, and since the holder took.
	if most := 10 + flowed(over, rest.At); granted+rest.Granted > most {
		t.Errorf("the holder %s: %d and %d granted in %v, want at most %d", key, granted, rest.Granted, rest.At.Sub(over), most)
	}
	if most := 10 + flowed(taken, rest.At); take+granted+rest.Granted > most {
		t.Errorf("the holder %s: it took %d, then %d and %d granted in %v, want at most %d", key, take, granted, rest.Granted, rest.At.Sub(taken), most)
	}
}
