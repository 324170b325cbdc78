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

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// tally is what callers know of the tokens of one bucket.
type tally struct {
	limiter, key string
	limit        pglimit.Limit

	used    atomic.Int64 // granted, and kept
	perhaps atomic.Int64 // given back, or asked for by a call that failed

	mu      sync.Mutex
	history audit.History // of what was used, when it was due
}

func (b *tally) use(d pglimit.Decision) {
	if d.Granted == 0 {
		return
	}
	b.used.Add(d.Granted)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.history.Add(audit.Event{At: d.At.Add(d.Delay).UnixNano(), Granted: d.Granted})
}

// note the outcome of a call for n tokens. A caller who cancelled it does not know if they are taken.
func (b *tally) note(d pglimit.Decision, n int64, err error) error {
	if err != nil {
		b.perhaps.Add(n)
		return err
	}
	b.use(d)
	return nil
}

// reserve tokens, half of which are given back.
func (b *tally) reserve(ctx context.Context, limiter *pglimit.Limiter, n int64, keep bool) error {
	r, err := limiter.ReserveN(ctx, b.key, n)
	if err != nil || keep {
		if err == nil {
			return b.note(r.Decision(), n, nil)
		}
		return b.note(pglimit.Decision{}, n, err)
	}
	b.perhaps.Add(n)
	return r.Cancel(context.WithoutCancel(ctx))
}

// 32 callers of two processes reserve and wait far ahead and give up at random, ask a Limiter that
// blocks keys, and one on a *sql.DB for each driver. Nothing flows back, so what the buckets have lost
// adds up. (TestEverythingAtOnce is for all that takes tokens that are there, on a pgx pool.)
func TestReservationsBlocksAndSQLAddUp(t *testing.T) {
	t.Parallel()
	const callers = 32
	admin := newMigrated(t)
	far := pglimit.Every(time.Hour).WithBurst(10)
	config := func(name string, limit pglimit.Limit) pglimit.Config {
		return pglimit.Config{
			Name: name, Limit: limit, MaxAhead: 200_000 * time.Hour, MaxWait: 200_000 * time.Hour, Timeout: time.Minute,
			Breaker: pglimit.Breaker{Off: true}, // on a machine that is short of time, it may open
		}
	}
	var ahead, blocking [2]*pglimit.Limiter
	for i, pool := range twoPools(t, admin, 24) {
		blocks := config("blocking", pglimit.PerSecond(1000)) // blocks of a millisecond; the requests bring a limit of their own
		blocks.Block = pglimit.Block{After: 3, Within: time.Minute, For: time.Millisecond, Max: time.Millisecond}
		ahead[i], blocking[i] = newLimiter(t, pool, strategies.TokenBucket{}, config("ahead", far)), newLimiter(t, pool, strategies.TokenBucket{}, blocks)
	}
	var onSQL [2]*pglimit.Limiter
	for i, driver := range sqlDrivers[:2] {
		limiter, err := pglimit.NewSQL(openSQL(t, driver.open, databaseURL(admin), 8), strategies.TokenBucket{}, config("sql", slowly[0]))
		must(t, err)
		onSQL[i] = limiter
	}

	crowded := &tally{limiter: "ahead", key: "crowded", limit: far}
	blocked := &tally{limiter: "blocking", key: "k", limit: slowly[0]}
	bySQL := &tally{limiter: "sql", key: "k", limit: slowly[0]}
	d, err := blocking[0].Do(t.Context(), pglimit.Request{Key: blocked.key, Limit: blocked.limit, Tokens: 1})
	must(t, blocked.note(d, 1, err))
	var alone [callers]*tally // buckets of one caller each
	// Until each has seen what it is there for: on a busy machine a call may take longer than its caller stays.
	atLeast, atMost := soon(t, 1500*time.Millisecond), soon(t, 3*time.Minute)
	seen := func() bool {
		return crowded.used.Load() > 0 && blocked.used.Load() > 1 && bySQL.used.Load() > 0 &&
			blocking[0].Stats().Blocked+blocking[1].Stats().Blocked > 0
	}
	var work sync.WaitGroup
	for i := range callers {
		alone[i] = &tally{limiter: "ahead", key: strconv.Itoa(i), limit: far}
		random := rand.New(rand.NewPCG(uint64(i), 61))
		work.Go(func() {
			for atLeast.Err() == nil || !seen() && atMost.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(100*time.Millisecond))))
				if random.IntN(3) == 0 {
					time.AfterFunc(time.Duration(random.Int64N(int64(5*time.Millisecond))), cancel)
				}
				n := 1 + random.Int64N(3)
				var err error
				switch random.IntN(5) {
				case 0:
					err = crowded.reserve(ctx, ahead[i%2], n, random.IntN(2) == 0)
				case 1:
					// The deadline bounds the wait, and a Limiter reserves nothing beyond it: this
					// one has none, and is cancelled.
					waiting, leave := context.WithCancel(t.Context())
					time.AfterFunc(time.Duration(random.Int64N(int64(20*time.Millisecond))), leave)
					d, failed := ahead[i%2].WaitN(waiting, crowded.key, n)
					leave()
					err = crowded.note(d, n, failed)
				case 2:
					err = alone[i].reserve(t.Context(), ahead[i%2], n, random.IntN(2) == 0)
				case 3:
					if random.IntN(2) == 0 { // denied for sure, and counted
						_, err = blocking[i%2].Do(ctx, pglimit.Request{Key: blocked.key, Limit: blocked.limit, Tokens: blocked.limit.Burst})
						break
					}
					d, failed := blocking[i%2].Do(ctx, pglimit.Request{Key: blocked.key, Limit: blocked.limit, Tokens: n})
					err = blocked.note(d, n, failed)
				case 4:
					d, failed := onSQL[i%2].AllowN(ctx, bySQL.key, n)
					err = bySQL.note(d, n, failed)
				}
				cancel()
				if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	for _, limiters := range [][2]*pglimit.Limiter{ahead, blocking, onSQL} { // what callers left behind is given back
		must(t, errors.Join(limiters[0].Close(t.Context()), limiters[1].Close(t.Context())))
	}

	// Without a doubt, the bucket has lost what was used. Else up to so many tokens more.
	check := func(b *tally, doubt int64) (missing int64) {
		t.Helper()
		d := takeAll(t, admin, strategies.TokenBucket{}, pglimit.Request{Limiter: b.limiter, Key: b.key, Limit: b.limit, Unit: 1})[0]
		taken := int64((d.ResetAfter + b.limit.Token()/2) / b.limit.Token()) // a fraction of one has flowed back, or could not be given back
		if missing = taken - b.used.Load(); missing < 0 || missing > doubt {
			t.Errorf("%s of %s: %d tokens were used, the bucket has lost %d; up to %d more may be lost", b.key, b.limiter, b.used.Load(), taken, doubt)
		}
		if report := b.history.Check(b.limit); report.Over.Tokens > 0 || report.Err != nil || b.used.Load() > 0 && report.Granted == 0 {
			t.Errorf("%s of %s: %v", b.key, b.limiter, report)
		}
		t.Logf("%s of %s: %d used, %d missing, %d in doubt", b.key, b.limiter, b.used.Load(), missing, doubt)
		return missing
	}
	// A place in the queue is lost if somebody has reserved behind it.
	if gaveUp := crowded.perhaps.Load(); check(crowded, gaveUp) == gaveUp || crowded.used.Load() == 0 {
		t.Errorf("%d were used, and nothing of %d came back", crowded.used.Load(), gaveUp)
	}
	// Nobody else reserves in these.
	for _, b := range alone {
		check(b, 0)
	}
	// A call that failed may have taken its tokens.
	check(blocked, blocked.perhaps.Load())
	// The Limiter gives back what was granted to callers who had left, and knows what it could not.
	check(bySQL, onSQL[0].Stats().Plus(onSQL[1].Stats()).LostTokens)
	stats := blocking[0].Stats().Plus(blocking[1].Stats())
	if stats.Blocked == 0 || blocked.used.Load() == 1 || bySQL.used.Load() == 0 {
		t.Errorf("%d denied by a block, %d and %d tokens used", stats.Blocked, blocked.used.Load(), bySQL.used.Load())
	}
}
