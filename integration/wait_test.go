package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// reservers are the strategies that can wait, each on a database of its own.
func reservers(t *testing.T, test func(*testing.T, *pgxpool.Pool, strategies.Strategy)) {
	t.Helper()
	eachStrategy(t, func(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy) {
		if strategy.Check(&rate.Request{Limit: pglimit.Every(time.Second), Ahead: 1}) != nil {
			t.Skip("it cannot reserve")
		}
		test(t, pool, inTokens(strategy))
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

// turn is one caller's Wait, by the one clock of the machine.
type turn struct {
	Asked, Placed time.Time // before the call, and when Postgres had said when its turn is
	Due, Released time.Time
}

// Callers in four processes wait for one key of 100/s. Their tokens are due one after another at that rate, first come,
// first served; nobody is released before its token is due; and there is hardly more than a round trip for each. How
// punctually they are released is a test of pglimit's.
func TestWaitersAreReleasedAtTheRate(t *testing.T) {
	t.Parallel()
	const processes = 4
	for _, strategy := range []strategies.Strategy{strategies.TokenBucket{}, strategies.Upsert{}} {
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			pool := newMigrated(t)
			var all []turn
			var trips int64
			var children [processes]*exec.Cmd
			var out [processes]io.Reader
			for i := range children {
				children[i], out[i] = child(t, "TestWaitersChild", strategy.Name()+" "+databaseURL(pool))
			}
			for i := range children {
				var said waitersSaid
				text, err := io.ReadAll(out[i])
				must(t, err)
				if err := json.NewDecoder(bytes.NewReader(text)).Decode(&said); err != nil || children[i].Wait() != nil {
					t.Fatalf("%v, %v: %s", err, children[i].ProcessState, text)
				}
				all, trips = append(all, said.Turns...), trips+said.Trips
			}
			slices.SortFunc(all, func(a, b turn) int { return a.Due.Compare(b.Due) })
			for i := range all {
				if early := all[i].Due.Sub(all[i].Released); early > 0 {
					t.Errorf("%d was released %v before its time", i, early)
				}
				if i == 0 {
					continue
				}
				if apart := all[i].Due.Sub(all[i-1].Due); apart < waitersLimit.Token() {
					t.Errorf("%d is due %v after the one before", i, apart)
				}
			}
			servedInTurn(t, all)
			if len(all) != processes*waitersEach || float64(trips) >= 1.1*processes*waitersEach {
				t.Errorf("%d round trips for %d", trips, len(all))
			}
		})
	}
}

// waitersEach is how many callers each process has.
const waitersEach = 50

var waitersLimit = pglimit.PerSecond(100).WithBurst(1)

// waitersSaid is what a process tells of its callers.
type waitersSaid struct {
	Turns []turn
	Trips int64
}

// TestWaitersChild is not a test but one of the processes of the test above.
func TestWaitersChild(t *testing.T) {
	strategy, pool := childsDatabase(t)
	type place struct{}
	limiter := newLimiter(t, pool, strategy, pglimit.Config{
		Name: "test", Limit: waitersLimit, MaxWait: time.Hour,
		OnDecision: func(ctx context.Context, _ pglimit.Request, _ pglimit.Decision, _ error) {
			ctx.Value(place{}).(*turn).Placed = time.Now() //nolint:forcetypeassert // it is
		},
	})
	said := waitersSaid{Turns: make([]turn, waitersEach)}
	var work sync.WaitGroup
	for i := range said.Turns {
		turn := &said.Turns[i]
		work.Go(func() {
			turn.Asked = time.Now()
			d, err := limiter.Wait(context.WithValue(t.Context(), place{}, turn), "k")
			if turn.Released = time.Now(); err != nil {
				t.Error(err)
			}
			turn.Due = d.At.Add(d.Delay)
		})
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // they come one after another, much faster than they are released
	}
	work.Wait()
	said.Trips = limiter.Stats().RoundTrips
	must(t, limiter.Close(t.Context()))
	must(t, json.NewEncoder(os.Stdout).Encode(said))
}

// servedInTurn checks turns in the order in which they are due: who had a place before another one asked
// is due before that.
func servedInTurn(t *testing.T, turns []turn) {
	t.Helper()
	placed := turns[len(turns)-1].Placed // the first to have a place, of those that are due later
	for i := len(turns) - 1; i >= 0; i-- {
		if turns[i].Asked.After(placed) {
			t.Errorf("%d asked %v after another one had its place, and is due before that", i, turns[i].Asked.Sub(placed))
		}
		if turns[i].Placed.Before(placed) {
			placed = turns[i].Placed
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
		least, most := soon(t, 600*time.Millisecond), soon(t, time.Minute)
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
		report := all.Check(nil, limit)
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

// childsDatabase is the task of a child: which strategy, on which database.
func childsDatabase(t *testing.T) (strategies.Strategy, *pgxpool.Pool) {
	t.Helper()
	name, url, ok := strings.Cut(task(), " ")
	if !ok {
		t.Skip("runs as a child of another test")
	}
	strategy, err := strategies.ByName(name)
	must(t, err)
	return inTokens(strategy), newPool(t, url, 4)
}
