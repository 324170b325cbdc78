//go:build unix

package prove

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// The limits of the load. Few keys and small bursts, and some slow rates: a slow machine, too, meets empty buckets.
var (
	apiLimits = map[string]pglimit.Limit{
		"a": pglimit.PerSecond(100).WithBurst(20), "b": pglimit.PerSecond(20).WithBurst(10), "c": pglimit.PerSecond(4).WithBurst(8),
		"d": pglimit.PerSecond(10).WithBurst(10), "h": pglimit.PerSecond(10).WithBurst(10),
	}
	orgLimit      = pglimit.PerSecond(30).WithBurst(20)
	leasedLimit   = pglimit.PerSecond(15).WithBurst(20)
	calendarLimit = pglimit.PerSecond(6).Fixed()
	waitLimit     = pglimit.PerSecond(20).WithBurst(6)
	looseLimit    = pglimit.PerSecond(50).WithBurst(20) // of the limiter "changing", unless a rule says tightLimit
	tightLimit    = pglimit.PerSecond(10).WithBurst(5)
	counterLimit  = pglimit.Every(1000 * time.Hour).WithBurst(100) // does not refill in the time of a run
)

const (
	processes     = 3
	callers       = 8   // in each
	places        = 3   // of the permits
	mostCounts    = 120 // requests for the counter, of each process and round: porcupine's search is exponential
	ofUnknown     = 40  // of these is one without an answer
	longestWait   = 250 * time.Millisecond
	application   = "pglimit-prove"
	poolSize      = 4               // of each of two
	recoverWithin = 2 * time.Minute // of a fault's end each process must be granted something, on a slow machine too
	workerOptions = "&pool_max_conns=4&application_name=" + application
)

// task of a worker process.
type task struct {
	URL           string
	Worker, Round int
	Seed          uint64
	Timeout       time.Duration // of a decision
}

// line is what a worker tells of a request: before it is sent, with an outcome that is Unknown, and once it is
// answered.
type line struct {
	audit.Record
	Call   uint64 `json:"call"` // the same before and after
	Round  int    `json:"round"`
	Worker int    `json:"worker"`
	Began  int64  `json:"began"` // by the machine's clock, in nanoseconds since 1970
	Ended  int64  `json:"ended"`
	Permit int64  `json:"permit,omitempty"` // so many places were certainly held from Began to Ended
	Error  string `json:"error,omitempty"`
}

type worker struct {
	task
	pools            [2]*pgxpool.Pool
	limiters         [2]*pglimit.Limiter
	leased, changing *pglimit.Limiter
	permits          *semaphore.Semaphore
	calls            atomic.Uint64
	phase            atomic.Int64 // twice the round, and one more when the fault is over
	counting         sync.Mutex   // one request for the counter at a time
	counted          map[int]int  // by round
	telling          sync.Mutex
	to               *json.Encoder
}

// Work is a worker process: it reads its task and then commands, line by line, until the parent is gone.
func Work(ctx context.Context, from io.Reader, to io.Writer) error {
	commands := bufio.NewScanner(from)
	w := worker{to: json.NewEncoder(to), counted: make(map[int]int)}
	if !commands.Scan() || json.Unmarshal(commands.Bytes(), &w.task) != nil {
		return errors.New("it is started by \"pglimit prove\"")
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	w.phase.Store(2 * int64(w.Round))
	w.calls.Store(uint64(w.Worker) << 32) //nolint:gosec // a small number
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asking sync.WaitGroup
	for i := range callers {
		asking.Go(func() {
			c := caller{worker: &w, Rand: rand.New(rand.NewPCG(w.Seed, uint64(i)))} //nolint:gosec // a load
			for ctx.Err() == nil {
				phase := w.phase.Load()
				c.round, c.after = int(phase/2), phase%2 == 1
				idle := time.Duration(c.IntN(6000)) * time.Microsecond
				if err := c.ask(context.WithoutCancel(ctx)); err != nil {
					idle += 30 * time.Millisecond
				}
				pass(ctx, idle)
			}
		})
	}
	for commands.Scan() {
		verb, n := "", int64(0)
		if _, _ = fmt.Sscan(commands.Text(), &verb, &n); verb == "phase" {
			w.phase.Store(n)
			continue
		}
		for range poolSize { // hold the connections of the first pool
			go w.pools[0].Exec(ctx, "select pg_sleep($1)", time.Duration(n).Seconds()) //nolint:errcheck // they are held or gone
		}
	}
	cancel()
	time.AfterFunc(30*time.Second, func() { os.Exit(1) }) //nolint:forbidigo // a call that ignores its time limit must not keep the parent
	asking.Wait()
	return nil
}

func (w *worker) open(ctx context.Context) (err error) {
	for i := range w.pools {
		if w.pools[i], err = pgxpool.New(ctx, w.URL); err != nil {
			return err
		}
	}
	limiter := func(pool int, config pglimit.Config) *pglimit.Limiter {
		config.Timeout, config.Durability = w.Timeout, pglimit.Durable
		made, failed := pglimit.New(w.pools[pool], strategies.TokenBucket{}, config)
		err = errors.Join(err, failed)
		return made
	}
	w.limiters[0] = limiter(0, pglimit.Config{Name: "api", Limit: apiLimits["a"]})
	w.limiters[1] = limiter(1, pglimit.Config{Name: "api", Limit: apiLimits["a"], Combine: pglimit.Combine{Off: true}, Memory: pglimit.Memory{Off: true}})
	w.leased = limiter(0, pglimit.Config{Name: "leased", Limit: leasedLimit, Leases: pglimit.Leases{On: true, TTL: 300 * time.Millisecond}})
	w.changing = limiter(1, pglimit.Config{Name: "changing", Limit: looseLimit, Limits: pglimit.LimitsFrom(w.pools[1], pglimit.LimitsConfig{Every: 50 * time.Millisecond})})
	var failed error
	w.permits, failed = semaphore.New(w.pools[1], semaphore.Config{Name: "permits", Places: places, TTL: 1500 * time.Millisecond, MaxWait: longestWait, Poll: 20 * time.Millisecond})
	return errors.Join(err, failed)
}

// tell the parent. Each line is one write: a killed process has told all or nothing of it.
func (w *worker) tell(lines ...line) {
	w.telling.Lock()
	defer w.telling.Unlock()
	for i := range lines {
		_ = w.to.Encode(&lines[i]) //nolint:errchkjson // if the parent is gone, stdin ends too
	}
}

// caller is one of many.
type caller struct {
	*worker
	*rand.Rand
	round int
	after bool // the fault is over: half of the keys are new then
}

// request for some tokens of a bucket of this round.
func (c *caller) request(limiter, key string, limit pglimit.Limit, most int64) pglimit.Request {
	if c.after && c.IntN(2) == 0 {
		key += "+"
	}
	return pglimit.Request{Limiter: limiter, Key: fmt.Sprintf("%d:%s", c.round, key), Limit: limit, Tokens: 1 + c.Int64N(most)}
}

// ask for something, in one of the ways that there are.
func (c *caller) ask(ctx context.Context) error {
	l := c.limiters[c.IntN(2)]
	api := func(key string) pglimit.Request { return c.request("api", key, apiLimits[key], 5) }
	id := fmt.Sprint(c.calls.Add(1))
	switch n := c.IntN(100); {
	case n < 6: // many at the same moment, and as much as there is
		now := time.Now()
		pass(ctx, now.Truncate(100*time.Millisecond).Add(100*time.Millisecond).Sub(now))
		r := api("h")
		r.Tokens, r.Unit = apiLimits["h"].Burst, 1
		return c.do(ctx, c.limiters[1], r, nil)
	case n < 13: // all or none
		requests := []pglimit.Request{api("a"), api("b"), api("c"), c.request("org", "o", orgLimit, 3), c.request("calendar", "day", calendarLimit, 1)}
		c.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		requests = requests[:2+c.IntN(2)]
		return c.send(requests, func() ([]pglimit.Decision, error) {
			group, err := l.DoAll(ctx, requests...)
			return group.Decisions, err
		}, nil)
	case n < 21: // and once more, or twice
		r := api("b")
		r.ID = id
		err := c.do(ctx, l, r, nil)
		for range c.IntN(3) {
			err = c.do(ctx, c.limiters[c.IntN(2)], r, nil)
		}
		return err
	case n < 29:
		return c.settle(ctx, l, api("d"))
	case n < 35: // who gives up may have taken tokens for a while: that is an error, so they excuse denials
		r := c.request("wait", "w", waitLimit, 3)
		r.MaxWait = longestWait
		ctx, cancel := context.WithTimeout(ctx, time.Duration(20+c.IntN(400))*time.Millisecond)
		defer cancel()
		return c.do(ctx, l, r, nil)
	case n < 45:
		r := c.request("leased", "l", leasedLimit, 2)
		if c.IntN(20) == 0 {
			r.ID = id
		}
		return c.do(ctx, c.leased, r, func(told *line, _ pglimit.Decision) { told.Contended = told.Granted == 0 }) // another process may have the tokens
	case n < 51:
		return c.permit(ctx)
	case n < 52:
		_, err := c.pools[1].Exec(ctx, "select pglimit.set_limit('changing', $1, note => 'prove')", []string{tightLimit.String(), looseLimit.String()}[c.IntN(2)])
		return err
	case n < 59:
		return c.do(ctx, c.changing, c.request("changing", "p", pglimit.Limit{}, 4), nil)
	case n < 67:
		return c.do(ctx, l, c.request("calendar", "day", calendarLimit, 2), nil)
	case n < 76 && c.counting.TryLock():
		defer c.counting.Unlock()
		return c.count(ctx, l)
	default:
		r := api([]string{"a", "b", "c"}[c.IntN(3)])
		if c.IntN(5) == 0 { // as much as there is
			r.Unit = 1
		}
		return c.do(ctx, l, r, nil)
	}
}

// send tells of the requests, sends them, and tells the answers. changed may change what is told of an answer.
func (c *caller) send(requests []pglimit.Request, do func() ([]pglimit.Decision, error), changed func(told *line, d pglimit.Decision)) error {
	lines := make([]line, len(requests))
	now := time.Now().UnixNano()
	for i, r := range requests {
		lines[i] = line{Call: c.calls.Add(1), Round: c.round, Worker: c.Worker, Began: now, Ended: now, Record: audit.Record{
			Limiter: r.Limiter, Key: r.Key, Limit: audit.Limit{Limit: cmp.Or(r.Limit, looseLimit)}, At: audit.Time(now - 1000), // Postgres has microseconds
			Tokens: r.Tokens, Unit: r.Unit, ID: r.ID, Unknown: true, Durable: true,
		}}
	}
	c.tell(lines...)
	decisions, err := do()
	now = time.Now().UnixNano()
	for i := range lines {
		l := &lines[i]
		l.Ended, l.Unknown = now, false
		if err != nil {
			l.Record, l.Error = l.Answered(pglimit.Decision{}, err), err.Error()
			continue
		}
		d := decisions[i]
		l.Record = l.Answered(d, nil)
		if changed != nil {
			changed(l, d)
		}
	}
	c.tell(lines...)
	return err
}

func (c *caller) do(ctx context.Context, l *pglimit.Limiter, r pglimit.Request, changed func(told *line, d pglimit.Decision)) error {
	return c.send([]pglimit.Request{r}, func() ([]pglimit.Decision, error) {
		d, err := l.Do(ctx, r)
		return []pglimit.Decision{d}, err
	}, changed)
}

// settle takes an estimate, and charges less or more.
func (c *caller) settle(ctx context.Context, l *pglimit.Limiter, r pglimit.Request) error {
	more := c.IntN(3) == 0
	if r.Tokens = 4; more {
		r.Key += "more"
	}
	return c.do(ctx, l, r, func(told *line, d pglimit.Decision) {
		if d.Granted > 0 && more { // what is charged beyond what is there explains denials, and grants nothing
			extra := *told
			extra.Call, extra.Granted, extra.Tokens, extra.Unknown = c.calls.Add(1), 0, 2, true
			c.tell(extra)
			_, _ = l.Settle(ctx, d, d.Granted+extra.Tokens)
		} else if d.Granted > 0 { // it may have been given back even if that fails
			if told.Returned = 1 + c.Int64N(4); told.Returned%2 == 0 {
				_, _ = l.Settle(ctx, d, d.Granted-told.Returned)
			} else {
				_ = l.Refund(ctx, d, told.Returned)
			}
		}
	})
}

// count takes from a bucket that does not refill, whose history goes to porcupine too.
func (c *caller) count(ctx context.Context, l *pglimit.Limiter) error {
	if c.counted[c.round]++; c.counted[c.round] > mostCounts {
		return nil
	}
	r := pglimit.Request{Limiter: "counter", Key: fmt.Sprintf("%d:n", c.round), Limit: counterLimit, Tokens: 1 + c.Int64N(2)}
	err := c.do(ctx, l, r, nil)
	if err != nil && !errors.Is(err, pglimit.ErrNothingTaken) {
		c.counted[c.round] += ofUnknown
	}
	return err
}

// permit works with a permit, and tells when it was certainly held.
func (c *caller) permit(ctx context.Context) error {
	p, err := c.permits.AcquireN(ctx, "k", 1+c.Int64N(2))
	if err != nil {
		return err
	}
	held := line{Call: c.calls.Add(1), Round: c.round, Began: time.Now().UnixNano(), Permit: p.Weight}
	held.Limit.Limit = waitLimit // a line has one
	pass(p.Context(), time.Duration(c.IntN(20))*time.Millisecond)
	held.Ended = time.Now().UnixNano()
	if p.Err() == nil { // asked behind the clock
		c.tell(held)
	}
	return p.Release(ctx)
}

func pass(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}
