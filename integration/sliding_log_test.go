package integration

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// 64 callers on two pools ask for a token or two, half of them a Limiter with all its stages. The clock stands, so one
// request is granted. Every other one is in the row, counted once.
func TestEveryDenialIsCountedOnce(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	strategy := strategies.SlidingLog{CountDenied: true, MinInterval: time.Hour}
	limit := pglimit.Per(1000, time.Hour)
	var granted, asked, grants atomic.Int64
	var callers sync.WaitGroup
	for _, of := range twoPools(t, pool, 16) {
		limiter := newLimiter(t, of, strategy, pglimit.Config{Name: "test", Limit: limit})
		for i := range 32 {
			callers.Go(func() {
				for range 10 {
					tokens := int64(1 + i%2)
					var d pglimit.Decision
					var err error
					if i < 16 {
						d, err = limiter.AllowN(t.Context(), "k", tokens)
					} else {
						d = takeAll(t, of, strategy, ask("k", limit, tokens, tokens))[0]
					}
					if err != nil || d.Source == pglimit.FromMemory {
						t.Error(d, err)
						return
					}
					if d.Allowed {
						grants.Add(1)
					}
					asked.Add(tokens)
					granted.Add(d.Granted)
				}
			})
		}
		t.Cleanup(func() { must(t, limiter.Close(context.WithoutCancel(t.Context()))) })
	}
	callers.Wait()
	sum := func(of string) int64 {
		return query[int64](t, pool, "select coalesce(sum(n), 0)::bigint from pglimit.sliding_log, unnest(used) n where "+of)
	}
	if counted, in := -sum("n < 0"), sum("n > 0"); grants.Load() != 1 || in != granted.Load() || counted != asked.Load()-granted.Load() {
		t.Errorf("of %d tokens asked for, %d granted to %d callers; the row has %d granted and %d denied", asked.Load(), granted.Load(), grants.Load(), in, counted)
	}
	if used := query[int64](t, pool, "select used::bigint from pglimit.windows"); used != asked.Load() {
		t.Errorf("the view has %d tokens of %d", used, asked.Load())
	}
}

// Two instances with all their stages and 32 callers, by the database's clock: never more than a burst in a window, no
// two grants nearer than the distance, and no denial that was not due.
func TestGrantsKeepTheirDistance(t *testing.T) {
	t.Parallel()
	for _, costs := range [][]int64{nil, {1, 2, 3}} {
		f := fleet{
			config:   pglimit.Config{Name: "test", Limit: pglimit.Per(20, 400*time.Millisecond)},
			strategy: strategies.SlidingLog{MinInterval: 5 * time.Millisecond}, instances: 2, callers: 32, keys: 3, costs: costs,
		}
		pool := newMigrated(t)
		if report, _ := f.run(soon(t, time.Second), t, pool); !report.OK() || report.Grants == 0 || report.Denials == 0 {
			t.Error(report)
		}
	}
}

// A call that waits for the row decides by what it finds then: what was planned as a denial is granted if tokens were
// given back meanwhile, and what was planned as a grant is denied, and counted, if another call took them. It is dated
// then.
func TestADenialIsDecidedBehindTheLock(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	strategy, two := strategies.SlidingLog{CountDenied: true}, pglimit.Per(2, time.Hour)
	full := takeAll(t, pool, strategy, ask("given back", two, 2, 2))[0]
	takeAll(t, pool, strategy, ask("taken", two, 1, 1))
	for _, row := range []struct {
		key  string
		do   func(tx database)
		used []int64
	}{
		{"given back", func(tx database) {
			must(t, strategy.GiveBack(t.Context(), on(tx), []pglimit.Refund{{Request: ask("given back", two, 2, 2), At: full.At}}))
		}, []int64{1}},
		{"taken", func(tx database) { takeAll(t, tx, strategy, ask("taken", two, 1, 1)) }, []int64{1, 1, -1}},
	} {
		tx := begin(t, pool)
		row.do(tx)
		decided := make(chan pglimit.Decision)
		go func() { decided <- takeAll(t, pool, strategy, ask(row.key, two, 1, 1))[0] }()
		waiting(t, pool, 1)
		moveClock(t, pool, time.Second)
		must(t, tx.Commit(t.Context()))
		d := <-decided
		used := query[[]int64](t, pool, "select used from pglimit.sliding_log where key = $1", row.key)
		dated := query[bool](t, pool, "select at_ns = pglimit.clock_ns() from pglimit.sliding_log where key = $1", row.key)
		if d.Allowed != (used[len(used)-1] > 0) || !slices.Equal(used, row.used) || !dated {
			t.Errorf("%s: %+v, the row has %v, dated now: %v", row.key, d, used, dated)
		}
	}
}

// What can never be is refused.
func TestAnIntervalThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{-1, pglimit.MaxWindow + 1} {
		if err := (strategies.SlidingLog{MinInterval: interval}).Check(&rate.Request{Limit: pglimit.PerSecond(1)}); err == nil {
			t.Errorf("%v is accepted", interval)
		}
	}
	// The row stays for as long as the distance lasts, though its window is over.
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	for range 2 {
		moveClock(t, pool, time.Hour)
		if d := take(t, pool, strategies.SlidingLog{MinInterval: time.Hour}, "again", pglimit.PerSecond(2)); !d.Allowed {
			t.Errorf("%+v", d)
		}
		if left := query[int64](t, pool, "select full_ns - pglimit.clock_ns() from pglimit.sliding_log"); left != int64(time.Hour) {
			t.Errorf("the row may be swept in %v", time.Duration(left))
		}
	}
	execute(t, pool, "delete from pglimit.sliding_log")
	for _, granted := range []bool{true, false} {
		if d := take(t, pool, strategies.SlidingLog{MinInterval: pglimit.MaxWindow}, "k", pglimit.PerSecond(2)); d.Allowed != granted || d.RetryAfter < pglimit.MaxWindow-time.Hour {
			t.Errorf("%+v", d)
		}
	}
	if left := query[int64](t, pool, "select full_ns - pglimit.clock_ns() from pglimit.sliding_log"); left < int64(pglimit.MaxWindow-time.Hour) {
		t.Errorf("the row may be swept in %v", time.Duration(left))
	}
}

// After a step back of the clock, entries are in the order of their time, however Postgres groups them.
func TestDenialsStayInOrderAfterAStepBack(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	execute(t, pool, stoppedClock)
	log, limit := strategies.SlidingLog{CountDenied: true}, pglimit.Per(5, time.Hour)
	for _, hash := range []string{"on", "off"} {
		execute(t, pool, stoppedClock)
		one := newPool(t, with(databaseURL(pool), "enable_hashagg", hash), 1)
		takeAll(t, one, log, ask(hash, limit, 5, 5))
		for range 5 {
			moveClock(t, pool, 5*time.Minute)
			take(t, one, log, hash, limit)
		}
		moveClock(t, pool, -11*time.Millisecond)
		take(t, one, log, hash, limit) // is denied, by a row that was settled
		moveClock(t, pool, 36*time.Minute)
		for want := range int64(4) {
			moveClock(t, pool, 5*time.Minute)
			if d := takeAll(t, one, log, ask(hash, limit, 0, 1))[0]; d.Remaining != want {
				t.Errorf("hashagg %s: %d are left, want %d", hash, d.Remaining, want)
			}
		}
	}
}

// Who waits beside a reset is not denied by the row that was there before.
func TestADenialBesideAReset(t *testing.T) {
	t.Parallel()
	pool := newMigrated(t)
	log := strategies.SlidingLog{CountDenied: true}
	for _, burst := range []int64{1, 3} {
		limit, key := pglimit.Per(burst, time.Hour), strconv.FormatInt(burst, 10)
		takeAll(t, pool, log, ask(key, limit, burst, burst))
		tx := begin(t, pool)
		must(t, log.Reset(t.Context(), on(tx), "test", key))
		type answer struct {
			decisions []pglimit.Decision
			err       error
		}
		answers := make(chan answer, 1)
		go func() {
			var a answer
			for a.decisions == nil && (a.err == nil || errors.Is(a.err, pglimit.ErrNothingTaken)) {
				a.decisions, a.err = log.Take(t.Context(), on(pool), []rate.Request{ask(key, limit, 1, 1)})
			}
			answers <- a
		}()
		waiting(t, pool, 1)
		commit(t, tx)
		if a := <-answers; a.err != nil || !a.decisions[0].Allowed || a.decisions[0].Remaining != burst-1 {
			t.Errorf("%d: %+v", burst, a)
		}
	}
}
