package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

func takeOnce(t *testing.T, db database, id, key string, limit pglimit.Limit, ttl time.Duration) pglimit.Decision {
	t.Helper()
	return takeAll(t, db, strategies.TokenBucket{}, rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: 1, Unit: 1, ID: id, IDTTL: ttl})[0]
}

// An ID is removed when it has been free for a minute, and not before, however long the walk over
// the buckets is.
func TestSweepRemovesExpiredIDs(t *testing.T) {
	t.Parallel()
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(1000)
	for i := range 500 { // they take more pages than the bucket
		takeOnce(t, pool, fmt.Sprintf("soon free %0100d", i), "k", limit, time.Hour)
	}
	late := takeOnce(t, pool, "late", "k", limit, time.Hour)
	free := func(since time.Duration) {
		execute(t, pool, "update pglimit.token_bucket_answers set until_ns = pglimit.clock_ns() - $1 where id like 'soon%'", since.Nanoseconds())
	}
	sweep := func(want int64) {
		t.Helper()
		removed := int64(0)
		for from, done := pglimit.Cursor(0), false; !done; {
			swept, err := s.Sweep(t.Context(), on(pool), from, 100)
			must(t, err)
			if swept.Next != from+2 {
				t.Fatalf("%+v", swept)
			}
			removed, from, done = removed+swept.Removed, swept.Next, swept.Done
		}
		if removed != want {
			t.Errorf("%d removed, want %d", removed, want)
		}
	}
	sweep(0)
	free(30 * time.Second)
	sweep(0) // on any machine that needs no 30 s for it
	free(61 * time.Second)
	// One that somebody holds stays, and is not waited for.
	holder := begin(t, pool)
	execute(t, holder, "select from pglimit.token_bucket_answers where id like '%0007' for update")
	sweep(499)
	must(t, holder.Rollback(t.Context()))
	sweep(1)
	if again := takeOnce(t, pool, "late", "k", limit, time.Hour); again != late {
		t.Errorf("%+v, was %+v", again, late)
	}
}

// The same ID expires while many callers send it: each time, one of them is charged, and no two
// within its time.
func TestAnIDThatExpiresUnderLoad(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Millisecond
	pool, s := newMigrated(t), strategies.TokenBucket{}
	limit := hours.WithBurst(1000)
	var mu sync.Mutex
	grants := make(map[time.Time]pglimit.Decision)
	var callers sync.WaitGroup
	ctx, patience := soon(t, 500*time.Millisecond), soon(t, time.Minute)
	few := func() bool { // as when the machine did not run this process for so long
		mu.Lock()
		defer mu.Unlock()
		return len(grants) < 5
	}
	for range 16 {
		callers.Go(func() {
			for ctx.Err() == nil || patience.Err() == nil && few() {
				decisions, err := s.Take(context.WithoutCancel(ctx), on(pool), []rate.Request{{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1, ID: "id", IDTTL: ttl}})
				if err != nil {
					t.Error(err)
					return
				}
				d := decisions[0]
				mu.Lock()
				if first, known := grants[d.At]; known && first != d {
					t.Errorf("%+v and %+v", first, d)
				}
				grants[d.At] = d
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	times := slices.SortedFunc(maps.Keys(grants), time.Time.Compare)
	for i := 1; i < len(times); i++ {
		if passed := times[i].Sub(times[i-1]); passed < ttl {
			t.Errorf("charged twice within %v", passed)
		}
	}
	left := takeAll(t, pool, s, rate.Request{Limiter: "test", Key: "k", Limit: limit, Unit: 1})[0].Remaining
	if charged := limit.Burst - left; charged != int64(len(grants)) || charged < 5 {
		t.Errorf("%d tokens are gone, %d decisions were made", charged, len(grants))
	}
}

// The first of two requests with the same ID takes the last token when the second one has looked
// for the ID, and not yet at the bucket: the second one is not denied.
func TestTheLastTokenGoesToTheSameIDBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, pausingClock)
	holder, second := begin(t, pool), newPool(t, databaseURL(pool), 1)
	execute(t, holder, "select pg_advisory_xact_lock(1)")
	execute(t, second, "select set_config('test.pauses', 'yes', false)")
	decided := make(chan pglimit.Decision, 1)
	var call sync.WaitGroup
	call.Go(func() { decided <- takeOnce(t, second, "id", "k", hours, time.Hour) })
	for !query[bool](t, pool, "select exists (select from pg_locks where locktype = 'advisory' and not granted)") {
		if t.Context().Err() != nil {
			t.Fatal("the second request does not wait")
		}
	}
	first := takeOnce(t, pool, "id", "k", hours, time.Hour)
	must(t, holder.Rollback(t.Context()))
	call.Wait()
	if d := <-decided; !first.Allowed || d != first {
		t.Errorf("the first got %+v, the second %+v", first, d)
	}
}
