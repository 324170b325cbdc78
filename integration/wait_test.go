package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// reservers are the strategies that can wait, each on a database of its own.
func reservers(t *testing.T, test func(*testing.T, *pgxpool.Pool, strategies.Strategy)) {
	t.Helper()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if _, able := strategy.(pglimit.Reserver); !able {
			t.Skip("it cannot reserve")
		}
		test(t, pool, strategy)
	})
}

// four Limiters on pools of their own, as in four processes.
func fourLimiters(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, config pglimit.Config) []*pglimit.Limiter {
	t.Helper()
	limiters := make([]*pglimit.Limiter, 4)
	for i := range limiters {
		limiters[i] = newLimiter(t, newPool(t, databaseURL(pool), 4), strategy, config)
	}
	return limiters
}

// turn is when a caller's tokens were due, and when it was released.
type turn struct {
	wave          int
	due, released time.Time
	waited        bool
}

// A thousand waiters in four processes are released at the rate, each when its token is due, first come,
// first served, with hardly more than a round trip for each.
//
// Not parallel: it is about time.
func TestWaitersAreReleasedAtTheRate(t *testing.T) {
	const waves, limiters, each = 25, 4, 10 // callers of each Limiter in a wave
	const waiters = waves * limiters * each
	for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.Upsert{}} {
		t.Run(strategy.Name(), func(t *testing.T) {
			limit, decided := pglimit.PerSecond(500).WithBurst(1), make(chan struct{}, waiters)
			processes := fourLimiters(t, newMigrated(t), strategy, pglimit.Config{Name: "test", Limit: limit, MaxWait: time.Minute,
				OnDecision: func(context.Context, pglimit.Request, pglimit.Decision, error) { decided <- struct{}{} }})
			var turns [limiters][waves * each]turn
			var work sync.WaitGroup
			for i := range waiters { // a caller of each Limiter in turn
				work.Go(func() {
					d, err := processes[i%limiters].Wait(t.Context(), "k")
					if err != nil {
						t.Error(err)
					}
					turns[i%limiters][i/limiters] = turn{i / (limiters * each), d.At.Add(d.Delay), time.Now(), d.Delay > 0}
				})
				if (i+1)%(limiters*each) == 0 { // the next wave comes when this one knows its turns
					for range limiters * each {
						<-decided
					}
				}
			}
			work.Wait()
			var all []turn
			var trips int64
			for i := range turns {
				slices.SortFunc(turns[i][:], func(a, b turn) int { return a.due.Compare(b.due) })
				releasedInOrder(t, turns[i][:])
				all = append(all, turns[i][:]...)
				trips += processes[i].Stats().RoundTrips
				must(t, processes[i].Close(t.Context()))
			}
			slices.SortFunc(all, func(a, b turn) int { return a.due.Compare(b.due) })
			const first = waiters / 10 // the first ones may have time between them in which nobody waits
			var idle time.Duration     // as the later ones may on a machine that is too busy to form a queue
			for i := 1; i < waiters; i++ {
				apart := all[i].due.Sub(all[i-1].due)
				if apart < limit.Token() || all[i].waited && apart != limit.Token() {
					t.Errorf("%d is due %v after the one before; it waits: %v", i, apart, all[i].waited)
				}
				if i > first && !all[i].waited {
					idle += apart - limit.Token()
				}
				if all[i].wave < all[i-1].wave {
					t.Errorf("%d came in wave %d, and is due behind one of wave %d", i, all[i].wave, all[i-1].wave)
				}
			}
			// By the database's clock.
			took, want := all[waiters-1].due.Sub(all[first].due), (waiters-1-first)*limit.Token()
			if off := took - idle - want; off.Abs() > want/50 || idle > want/4 {
				t.Errorf("%v for %d, of which nobody waited for %v, want %v", took, waiters-first, idle, want)
			}
			t.Logf("%v for %d, of which nobody waited for %v, want %v, and %d round trips", took, waiters-first, idle, want, trips)
			if float64(trips) >= 1.1*waiters {
				t.Errorf("%d round trips for %d", trips, waiters)
			}
		})
	}
}

// releasedInOrder checks the turns of one process, in the order in which they are due: nobody was
// released before its time, nor behind another one that was due later. How soon a goroutine runs
// when its timer has fired is up to the machine: neighbours may swap.
func releasedInOrder(t *testing.T, turns []turn) {
	t.Helper()
	const swap = 250 * time.Millisecond
	for i, turn := range turns {
		if late := turn.released.Sub(turn.due); late < 0 || late > time.Second { // one machine, one clock
			t.Errorf("%d was released %v after its time", i, late)
		}
	}
	first := turns[len(turns)-1].released // of those that are due later
	for i := len(turns) - 1; i >= 0; i-- {
		if behind := turns[i].released.Sub(first); behind > swap {
			t.Errorf("%d was released %v behind another one that was due later", i, behind)
		}
		if turns[i].released.Before(first) {
			first = turns[i].released
		}
	}
}

// Callers of four processes wait, reserve, and give up at random. What is used when it is due is never
// over.
func TestWaitersWhoGiveUpLoseNothingAndAreNeverOver(t *testing.T) {
	t.Parallel()
	reservers(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.PerSecond(400).WithBurst(3)
		limiters := fourLimiters(t, pool, strategy, pglimit.Config{Name: "test", Limit: limit, MaxAhead: time.Second})
		var histories [64]audit.History
		var used, gaveUp, tooLong atomic.Int64
		var work sync.WaitGroup
		least, most := soon(t, 600*time.Millisecond), soon(t, 20*time.Second)
		for i := range histories {
			work.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), 47))
				for least.Err() == nil || used.Load() < 100 && most.Err() == nil {
					n := 1 + random.Int64N(2)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(time.Second))))
					if random.IntN(3) == 0 {
						time.AfterFunc(time.Duration(random.Int64N(int64(200*time.Millisecond))), cancel)
					}
					d, err := limiters[i%4].WaitN(ctx, "k", n)
					cancel()
					switch {
					case err == nil:
						used.Add(n)
						histories[i].Add(audit.Event{At: d.At.Add(d.Delay).UnixNano(), Granted: n})
					case errors.Is(err, pglimit.ErrWaitTooLong):
						tooLong.Add(1)
						runtime.Gosched()
					case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
						gaveUp.Add(1)
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
		var all audit.History
		for i := range histories {
			all.Merge(&histories[i])
		}
		report := all.Check(limit)
		var stats pglimit.Stats
		for _, limiter := range limiters {
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
			stats = stats.Plus(limiter.Stats())
		}
		t.Logf("%d used, %d gave up, %d would have waited too long: %v; %+v", used.Load(), gaveUp.Load(), tooLong.Load(), report, stats)
		if report.Over.Tokens > 0 || report.Err != nil || used.Load() < 100 || gaveUp.Load() == 0 || stats.GivenBack == 0 {
			t.Errorf("%d used, %d gave up: %v; %d tokens given back", used.Load(), gaveUp.Load(), report, stats.GivenBack)
		}
	})
}

// owed is how many tokens the bucket k owes.
func owed(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, limit pglimit.Limit) int64 {
	t.Helper()
	d := takeAll(t, pool, strategy, pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Unit: 1})[0]
	return limit.Refilled(d.ResetAfter)
}

// At a rate at which nothing flows back, tokens add up: what was reserved, less what was
// cancelled, is owed.
func TestReservationsAddUp(t *testing.T) {
	t.Parallel()
	reservers(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(time.Hour).WithBurst(10)
		limiters := fourLimiters(t, pool, strategy, pglimit.Config{Name: "test", Limit: limit, MaxAhead: 5000 * time.Hour, MaxWait: 5000 * time.Hour})
		if d, err := limiters[0].AllowN(t.Context(), "k", 10); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		var cancel [3]context.CancelFunc
		var work [3]sync.WaitGroup
		for process := range cancel {
			var ctx context.Context
			ctx, cancel[process] = context.WithCancel(t.Context())
			for range 100 { // all of them wait for hours
				work[process].Go(func() {
					if _, err := limiters[process].Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
			}
			for ctx := soon(t, 30*time.Second); limiters[process].Stats().Asleep < 100; { // the others stand behind these
				if runtime.Gosched(); ctx.Err() != nil {
					t.Fatalf("%+v", limiters[process].Stats())
				}
			}
		}
		// All give up. What another process has reserved is not moved: the places in front of it are lost.
		for _, step := range []struct {
			process int
			left    int64
		}{{2, 210}, {0, 210}, {1, 110}} {
			cancel[step.process]()
			work[step.process].Wait()
			if left := owed(t, pool, strategy, limit); left != step.left {
				t.Errorf("process %d gave up: %d are owed, want %d", step.process, left, step.left)
			}
			if stats := limiters[step.process].Stats(); stats.GivenBack != 100 || stats.LostTokens != 0 {
				t.Errorf("%+v", stats)
			}
		}
	})
}

// Callers of one process come and give up all the time, also while they ask: nothing is lost.
func TestWaitersWhoComeAndGiveUpLoseNothing(t *testing.T) {
	t.Parallel()
	reservers(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		const callers, used = 200, 7
		limit := pglimit.Every(time.Hour).WithBurst(used)
		for name, combine := range map[string]pglimit.Combine{"combined": {}, "alone": {Off: true}} {
			limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test " + name, Limit: limit, MaxWait: 5000 * time.Hour, Combine: combine})
			if d, err := limiter.AllowN(t.Context(), "k", used); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			var work sync.WaitGroup
			for i := range callers {
				work.Go(func() {
					ctx, cancel := context.WithCancel(t.Context())
					defer time.AfterFunc(time.Duration(i%50)*time.Millisecond, cancel).Stop()
					if _, err := limiter.Wait(ctx, "k"); err == nil {
						t.Error("a token hours ahead of its time")
					}
				})
				time.Sleep(time.Millisecond) //nolint:forbidigo // they come one after another
			}
			work.Wait()
			must(t, limiter.Close(t.Context())) // those who left while they asked, too
			d := takeAll(t, pool, strategy, pglimit.Request{Limiter: "test " + name, Key: "k", Limit: limit, Unit: 1})[0]
			if left := limit.Refilled(d.ResetAfter); left != used {
				t.Errorf("%s: %d are owed, want %d: %+v", name, left, used, limiter.Stats())
			}
		}
	})
}

// A process that dies while its caller waits costs that one reservation, and nothing more: the
// others are served at their times.
func TestAWaiterWhoDiesCostsItsReservation(t *testing.T) {
	t.Parallel()
	reservers(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		limit := pglimit.Every(50 * time.Millisecond)
		first := take(t, pool, strategy, "k", limit)
		dead := takeAll(t, pool, strategy, pglimit.Request{Limiter: "test", Key: "k", Limit: limit, Tokens: 1, Unit: 1, Ahead: time.Minute})[0]
		limiter := newLimiter(t, pool, strategy, pglimit.Config{Name: "test", Limit: limit, MaxWait: time.Minute})
		d, err := limiter.Wait(t.Context(), "k")
		if due := d.At.Add(d.Delay); err != nil || !dead.Allowed || !due.Equal(first.At.Add(100*time.Millisecond)) && due.Before(first.At.Add(100*time.Millisecond)) {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := limiter.Wait(t.Context(), "k"); err != nil || d.Granted != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
