package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// everything is one caller of one process, who uses all there is, at random.
type everything struct {
	t          *testing.T
	random     *rand.Rand
	pool       *pgxpool.Pool
	slow, fast *pglimit.Limiter
	ids        *sync.Map // of slow: whether a request with the ID was granted, or nobody knows yet

	used, perhaps int64         // of slow; and what may not have come back
	history       audit.History // of fast
	quick         *atomic.Int64 // how many grants are in all histories
}

// slowly are two limits under which nothing flows back during a test, and a token costs the same.
var slowly = [2]pglimit.Limit{{Tokens: 1, Period: 50 * time.Hour, Burst: 20_000}, {Tokens: 2, Period: 100 * time.Hour, Burst: 20_000}}

func (e *everything) key() string { return "key:" + strconv.Itoa(e.random.IntN(3)) }

// note what slow granted, of which some is given back at once, or which is charged some more. A lease that
// is out is not charged yet, so what is given back of it may be lost.
func (e *everything) note(d pglimit.Decision) {
	e.used += d.Granted
	if d.Granted == 0 || e.random.IntN(3) > 0 {
		return
	}
	n, back := 1+e.random.Int64N(d.Granted), true
	var err error
	switch e.random.IntN(3) {
	case 0:
		err = e.slow.Refund(e.t.Context(), d, n)
	case 1:
		_, err = e.slow.Settle(e.t.Context(), d, d.Granted-n)
	default:
		back = false
		var settled pglimit.Decision
		settled, err = e.slow.Settle(e.t.Context(), d, d.Granted+n)
		if e.used += n; settled.Granted != d.Granted+n {
			e.t.Errorf("%d more than %+v: %+v", n, d, settled)
		}
	}
	if err != nil {
		e.t.Error(err)
	}
	if back {
		if e.used -= n; d.Source == pglimit.FromLease {
			e.perhaps += n
		}
	}
}

// noteID notes what a request with an ID got. If that is not known, it will be asked again.
func (e *everything) noteID(key, id string, d pglimit.Decision) {
	if e.ids.LoadOrStore(key+" "+id, false); d.Allowed {
		e.ids.Store(key+" "+id, true)
	}
}

// slowly asks slow in one way or another.
func (e *everything) slowly(ctx context.Context) (err error) {
	var d pglimit.Decision
	n, key, id := 1+e.random.Int64N(3), e.key(), strconv.Itoa(e.random.IntN(100))
	switch e.random.IntN(16) {
	default: // a key for which there are leases, because nobody asks in another way
		d, err = e.slow.AllowN(ctx, "busy", n)
	case 2:
		d, err = e.slow.AllowN(ctx, key, n)
	case 3:
		d, err = e.slow.Do(ctx, pglimit.Request{Key: key, Limit: slowly[e.random.IntN(2)], Tokens: n})
	case 4:
		d, err = e.slow.Do(ctx, pglimit.Request{Key: key, Tokens: 1, ID: id})
		e.noteID(key, id, d)
		return err
	case 5:
		d, err = e.slow.WaitN(ctx, key, n)
	case 6:
		var r *pglimit.Reservation
		if r, err = e.slow.ReserveN(ctx, key, n); err != nil || e.random.IntN(2) == 0 {
			if err == nil {
				e.used += r.Decision().Granted
			}
			return err
		}
		return r.Cancel(e.t.Context())
	case 7:
		var g pglimit.Group
		g, err = e.slow.DoAll(ctx, pglimit.Request{Key: "key:0", Tokens: n}, pglimit.Request{Key: "key:1", Tokens: 1}, pglimit.Request{Key: key, Limiter: "slow/day", Limit: slowly[0], Tokens: 1})
		for _, d := range g.Decisions {
			e.note(d)
		}
		return err
	case 8:
		decisions, failed := e.slow.DoEach(ctx, pglimit.Request{Key: key, Tokens: n}, pglimit.Request{Key: "key:1"}, pglimit.Request{Key: key, Tokens: 1, ID: id},
			pglimit.Request{Key: "key:2", Tokens: 4, Unit: 2, Limit: slowly[e.random.IntN(2)]}, pglimit.Request{Key: "key:2", Tokens: 2, Ahead: time.Second})
		for i, d := range decisions {
			if i == 2 {
				e.noteID(key, id, d)
			} else {
				e.note(d)
			}
		}
		return failed
	case 9:
		return e.inTx(key, n)
	}
	e.note(d)
	return err
}

// inTx takes in a transaction, which is rolled back or not.
func (e *everything) inTx(key string, n int64) error {
	tx, err := e.pool.Begin(e.t.Context())
	if err != nil {
		return err
	}
	defer tx.Rollback(e.t.Context()) //nolint:errcheck // it may be committed
	in, granted := e.slow.On(pglimit.InTx(tx)), int64(0)
	switch e.random.IntN(3) {
	case 0:
		g, failed := in.DoAll(e.t.Context(), pglimit.Request{Key: "key:0", Tokens: n}, pglimit.Request{Key: "key:2", Tokens: 1})
		for _, d := range g.Decisions {
			granted += d.Granted
		}
		err = failed
	case 1:
		r, failed := in.ReserveN(e.t.Context(), key, n)
		if failed != nil {
			return failed
		}
		granted = r.Decision().Granted
	default:
		d, failed := in.AllowN(e.t.Context(), key, n)
		granted, err = d.Granted, failed
	}
	if err != nil || e.random.IntN(2) == 0 {
		return err
	}
	e.used += granted
	return tx.Commit(e.t.Context())
}

// quickly waits for tokens that flow back, or reserves some, and gives some up.
func (e *everything) quickly(ctx context.Context) error {
	used := func(d pglimit.Decision) {
		e.history.Add(audit.Event{At: d.At.Add(d.Delay).UnixNano(), Granted: d.Granted})
		if d.Granted > 0 {
			e.quick.Add(1)
		}
	}
	if e.random.IntN(2) == 0 {
		d, err := e.fast.WaitN(ctx, "k", 1+e.random.Int64N(2))
		if err == nil {
			used(d)
		}
		return err
	}
	r, err := e.fast.Reserve(ctx, "k")
	if err != nil || e.random.IntN(2) == 0 && r.OK() {
		if err == nil {
			used(r.Decision())
		}
		return err
	}
	return r.Cancel(e.t.Context())
}

// 64 callers of two processes use all there is at random, with all stages but the breaker, and lose patience at
// random; limits change. In the end, the buckets have lost what was used, and nothing else; what flows
// back quickly was never over, and no goroutine is left.
//
// Not parallel: other tests have goroutines too.
func TestEverythingAtOnce(t *testing.T) {
	admin := newMigrated(t)
	warmUp(t, admin, 1)
	before := goleak.IgnoreCurrent()
	pools := twoPools(t, admin, 48)
	var slow, fast [2]*pglimit.Limiter
	for i, pool := range pools {
		slow[i] = newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{
			Name: "slow", Limit: slowly[0], MaxAhead: 1, MaxWait: time.Second, IDTTL: time.Hour,
			// On a machine that is short of time, a lease may expire before it is settled: what it has
			// not spent is missing then. And the breaker may open.
			Leases: pglimit.Leases{On: true, TTL: 10 * time.Second}, Breaker: pglimit.Breaker{Off: true},
		})
		fast[i] = newLimiter(t, pool, strategies.TokenBucket{}, pglimit.Config{Name: "fast", Limit: pglimit.PerSecond(400).WithBurst(5), MaxAhead: 200 * time.Millisecond, Breaker: pglimit.Breaker{Off: true}})
	}
	var callers [64]everything
	var ids sync.Map
	var quick atomic.Int64
	var work sync.WaitGroup
	running, stop := context.WithCancel(soon(t, time.Minute))
	defer stop()
	for i := range callers {
		e := &callers[i]
		*e = everything{t: t, random: rand.New(rand.NewPCG(uint64(i), 59)), pool: pools[i%2], slow: slow[i%2], fast: fast[i%2], ids: &ids, quick: &quick}
		work.Go(func() {
			for running.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(e.random.Int64N(int64(300*time.Millisecond))))
				if e.random.IntN(4) == 0 {
					time.AfterFunc(time.Duration(e.random.Int64N(int64(5*time.Millisecond))), cancel)
				}
				ask := e.slowly
				if e.random.IntN(4) == 0 {
					ask = e.quickly
				}
				err := ask(ctx)
				cancel()
				if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, pglimit.ErrWaitTooLong) {
					t.Error(err)
				}
				if e.random.IntN(50) == 0 {
					if err := e.slow.SetLimit(slowly[e.random.IntN(2)]); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	<-soon(t, 2*time.Second).Done()
	for running.Err() == nil { // a machine that is short of time may need longer
		if stats := slow[0].Stats().Plus(slow[1].Stats()); stats.Allowed[pglimit.FromLease] > 0 && stats.GivenBack+stats.PassedOnTokens > 0 && quick.Load() > 0 {
			stop()
		}
		<-soon(t, 10*time.Millisecond).Done()
	}
	work.Wait()

	var used, perhaps int64
	ids.Range(func(name, granted any) bool {
		key, id := name.(string)[:5], name.(string)[6:]
		d, err := slow[0].Do(t.Context(), pglimit.Request{Key: key, Tokens: 1, ID: id})
		if err != nil || granted.(bool) && !d.Allowed {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		used += d.Granted
		return true
	})
	var stats pglimit.Stats
	for i := range pools {
		for _, limiter := range []*pglimit.Limiter{slow[i], fast[i]} {
			if err := limiter.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		stats = stats.Plus(slow[i].Stats())
		pools[i].Close()
	}
	var history audit.History
	for i := range callers {
		used, perhaps = used+callers[i].used, perhaps+callers[i].perhaps
		history.Merge(&callers[i].history)
	}
	find := func() error {
		return goleak.Find(before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
	}
	leaked := find()
	for patience := soon(t, time.Minute); leaked != nil && patience.Err() == nil; leaked = find() { // a goroutine that has said that it is done may end later
	}
	if leaked != nil {
		t.Error(leaked)
	}
	if report := history.Check(nil, fast[0].Limit()); report.Over.Tokens > 0 || report.Err != nil || report.Granted == 0 {
		t.Error(report)
	}
	var taken int64
	for _, limiter := range []string{"slow", "slow/day"} {
		for _, key := range []string{"key:0", "key:1", "key:2", "busy"} {
			look := rate.Request{Limiter: limiter, Key: key, Limit: slowly[0], Unit: 1}
			taken += look.Limit.Burst - takeAll(t, admin, strategies.TokenBucket{}, look)[0].Remaining
		}
	}
	// A bucket may miss a fraction of a token: what would have flowed back into it.
	missing := taken - used
	t.Logf("%d tokens were used, %d are missing from the buckets; %d of leases were given back; %+v", used, taken, perhaps, stats)
	if missing < 0 || missing > stats.LostTokens+perhaps+7 {
		t.Errorf("%d tokens are neither used nor in the buckets", missing)
	}
	if stats.Allowed[pglimit.FromLease] == 0 || stats.GivenBack+stats.PassedOnTokens == 0 || used < 20 {
		t.Errorf("%d tokens were used, %+v", used, stats)
	}
}
