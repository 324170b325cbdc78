//go:build unix

package prove

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// The limits of the load. Few keys and small bursts, so that most requests meet an empty bucket.
var (
	apiLimit      = pglimit.PerSecond(100).WithBurst(20)
	orgLimit      = pglimit.PerSecond(150).WithBurst(40)
	leasedLimit   = pglimit.PerSecond(60).WithBurst(30)
	calendarLimit = pglimit.PerSecond(12).Fixed()
	waitLimit     = pglimit.PerSecond(40).WithBurst(6)
	looseLimit    = pglimit.PerSecond(200).WithBurst(40) // of the limiter "changing", unless a rule says tightLimit
	tightLimit    = pglimit.PerSecond(40).WithBurst(8)
	counterLimit  = pglimit.Every(24 * time.Hour).WithBurst(100) // does not refill in the time of a run
)

const (
	places      = 3 // of the permits
	permitTTL   = 1500 * time.Millisecond
	longestWait = 250 * time.Millisecond
	mostCounts  = 120 // requests for the counter, of each process and round: porcupine's search is exponential
	mostUnknown = 3   // of them without an answer
	afterMark   = "+" // in the keys that are used only when the fault is over
	pauseAtMost = 6 * time.Millisecond
	refusedFor  = 30 * time.Millisecond
	application = "pglimit prove"
	poolSize    = 4
)

// task of a worker process.
type task struct {
	URL     string
	Worker  int
	Callers int
	Seed    uint64
	Round   int
	Timeout time.Duration // of a decision
}

// line is what a worker tells of a request: before it is sent, with an outcome that is Unknown, and once it is answered.
type line struct {
	audit.Record
	Call  uint64 `json:"call"`            // the same before and after
	Begin bool   `json:"begin,omitempty"` // before
	Round int    `json:"round"`
	Began int64  `json:"began"` // by the machine's clock, in nanoseconds since 1970
	Ended int64  `json:"ended,omitempty"`

	Waits  bool   `json:"waits,omitempty"`  // it may take long
	Permit int64  `json:"permit,omitempty"` // so many places were certainly held from Began to Ended
	Error  string `json:"error,omitempty"`

	worker int
}

type worker struct {
	task
	first, second  *pgxpool.Pool
	limiters       [2]*pglimit.Limiter
	leased         *pglimit.Limiter
	changing       *pglimit.Limiter
	permits        *semaphore.Semaphore
	calls          atomic.Uint64
	phase          atomic.Int64 // twice the round, and one more when the fault is over
	counting       sync.Mutex   // one request for the counter at a time
	counted, blind map[int]int  // requests for the counter by round, and those without an answer

	mu sync.Mutex
	to io.Writer
}

// Work is a worker process: it reads its task and then commands, line by line, until the parent is gone.
func Work(ctx context.Context, from io.Reader, to io.Writer) error {
	commands := bufio.NewScanner(from)
	w := worker{to: to, counted: make(map[int]int), blind: make(map[int]int)}
	if !commands.Scan() {
		return errors.New("it is started by \"pglimit prove\"")
	}
	if err := json.Unmarshal(commands.Bytes(), &w.task); err != nil {
		return err
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	w.phase.Store(2 * int64(w.Round))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var callers sync.WaitGroup
	for i := range w.Callers {
		callers.Go(func() { w.call(ctx, rand.New(rand.NewPCG(w.Seed, uint64(i)))) }) //nolint:gosec // a load
	}
	for commands.Scan() {
		var n int64
		switch verb, rest, _ := strings.Cut(commands.Text(), " "); verb {
		case "phase":
			_, _ = fmt.Sscan(rest, &n)
			w.phase.Store(n)
		case "hold":
			_, _ = fmt.Sscan(rest, &n)
			go w.hold(ctx, time.Duration(n))
		}
	}
	cancel()
	time.AfterFunc(20*time.Second, func() { os.Exit(1) }) //nolint:forbidigo // a call that ignores its time limit must not keep the parent
	callers.Wait()
	return nil
}

func (w *worker) open(ctx context.Context) (err error) {
	for _, pool := range []**pgxpool.Pool{&w.first, &w.second} {
		config, err := pgxpool.ParseConfig(w.URL)
		if err != nil {
			return err
		}
		config.MaxConns = poolSize
		config.ConnConfig.RuntimeParams["application_name"] = application
		if *pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return err
		}
	}
	limiter := func(pool *pgxpool.Pool, config pglimit.Config) *pglimit.Limiter {
		config.Timeout, config.Durability = w.Timeout, pglimit.Durable
		made, failed := pglimit.New(pool, strategies.TokenBucket{}, config)
		err = errors.Join(err, failed)
		return made
	}
	w.limiters[0] = limiter(w.first, pglimit.Config{Name: "api", Limit: apiLimit})
	w.limiters[1] = limiter(w.second, pglimit.Config{Name: "api", Limit: apiLimit, Combine: pglimit.Combine{Off: true}, Memory: pglimit.Memory{Off: true}})
	w.leased = limiter(w.first, pglimit.Config{Name: "leased", Limit: leasedLimit, Leases: pglimit.Leases{On: true, TTL: 300 * time.Millisecond}})
	w.changing = limiter(w.second, pglimit.Config{Name: "changing", Limit: looseLimit, Limits: pglimit.LimitsFrom(w.second, pglimit.LimitsConfig{Every: 50 * time.Millisecond})})
	var failed error
	w.permits, failed = semaphore.New(w.second, semaphore.Config{Name: "permits", Places: places, TTL: permitTTL, MaxWait: longestWait, Poll: 20 * time.Millisecond})
	return errors.Join(err, failed)
}

// hold the connections of the first pool.
func (w *worker) hold(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for range poolSize {
		if conn, err := w.first.Acquire(ctx); err == nil {
			defer conn.Release()
		}
	}
	<-ctx.Done()
}

// caller is one of many.
type caller struct {
	*worker
	*rand.Rand
	round   int
	after   bool
	granted pglimit.Decision
}

func (w *worker) call(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		phase := w.phase.Load()
		c := caller{worker: w, Rand: random, round: int(phase / 2), after: phase%2 == 1}
		do, at := c.take, c.IntN(100)
		for _, kind := range []struct {
			percent int
			do      func(context.Context) error
		}{{9, c.group}, {9, c.once}, {8, c.settle}, {6, c.wait}, {10, c.lease}, {6, c.permit}, {8, c.change}, {8, c.calendar}, {9, c.count}} {
			if at -= kind.percent; at < 0 {
				do = kind.do
				break
			}
		}
		pause := time.Duration(c.Int64N(int64(pauseAtMost)))
		if err := do(ctx); err != nil {
			pause += refusedFor
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// key names a bucket of this round. Half of those that are used when the fault is over are new.
func (c *caller) key(name string) string {
	if c.after && c.IntN(2) == 0 {
		name += afterMark
	}
	return fmt.Sprintf("%d:%s", c.round, name)
}

func (c *caller) api(name string) pglimit.Request {
	return pglimit.Request{Limiter: "api", Key: c.key(name), Limit: apiLimit, Tokens: 1 + c.Int64N(5)}
}

func (c *caller) limiter() *pglimit.Limiter { return c.limiters[c.IntN(2)] }

// ask tells of the requests, sends them, and tells the answers. changed may change what is told.
func (c *caller) ask(requests []pglimit.Request, do func() ([]pglimit.Decision, error), changed func(i int, l *line, err error)) error {
	lines := make([]line, len(requests))
	now := time.Now().UnixNano()
	for i, r := range requests {
		lines[i] = line{Call: c.calls.Add(1), Begin: true, Round: c.round, Began: now, Record: audit.Record{
			Limiter: r.Limiter, Key: r.Key, Limit: audit.Limit{Limit: r.Limit}, At: audit.Time(now - 1000), // the database's clock has microseconds

			Tokens: r.Tokens, Unit: r.Unit, ID: r.ID, Unknown: true, Durable: true,
		}}
	}
	c.tell(lines)
	decisions, err := do()
	now = time.Now().UnixNano()
	for i := range lines {
		l := &lines[i]
		l.Begin, l.Ended, l.Unknown = false, now, false
		var d pglimit.Decision
		if err == nil {
			d = decisions[i]
		} else {
			l.Error = err.Error()
		}
		l.Record = l.Answered(d, err)
		if err == nil && d.Allowed && d.Granted == 0 { // one of a denied group that had the tokens
			l.Tokens = 0
		}
		if changed != nil {
			changed(i, l, err)
		}
	}
	c.tell(lines)
	return err
}

// one is ask for one request.
func (c *caller) one(r pglimit.Request, do func() (pglimit.Decision, error), changed func(l *line, err error)) error {
	return c.ask([]pglimit.Request{r}, func() ([]pglimit.Decision, error) {
		d, err := do()
		return []pglimit.Decision{d}, err
	}, func(_ int, l *line, err error) {
		if changed != nil {
			changed(l, err)
		}
	})
}

// tell the parent, in one write: who is killed has told all or nothing of it.
func (w *worker) tell(lines []line) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for i := range lines {
		_ = encoder.Encode(&lines[i])
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.to.Write(text.Bytes()) // the parent is gone: then stdin ends too
}

func (c *caller) do(ctx context.Context, l *pglimit.Limiter, r pglimit.Request, changed func(l *line, err error)) error {
	return c.one(r, func() (pglimit.Decision, error) { return l.Do(context.WithoutCancel(ctx), r) }, changed)
}

func (c *caller) take(ctx context.Context) error {
	r := c.api([]string{"a", "b", "c"}[c.IntN(3)])
	if c.IntN(5) == 0 { // as much as there is
		r.Unit = 1
	}
	return c.do(ctx, c.limiter(), r, nil)
}

func (c *caller) group(ctx context.Context) error {
	requests := []pglimit.Request{
		c.api("a"), c.api("b"), c.api("c"),
		{Limiter: "org", Key: c.key("o"), Limit: orgLimit, Tokens: 1 + c.Int64N(3)},
		{Limiter: "calendar", Key: c.key("day"), Limit: calendarLimit, Tokens: 1},
	}
	c.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
	requests = requests[:2+c.IntN(2)]
	return c.ask(requests, func() ([]pglimit.Decision, error) {
		group, err := c.limiter().DoAll(context.WithoutCancel(ctx), requests...)
		return group.Decisions, err
	}, nil)
}

// once sends a request with an ID, and sends it again if it failed, or for the sake of it.
func (c *caller) once(ctx context.Context) (err error) {
	r := c.api("b")
	r.ID = fmt.Sprintf("%d-%d", os.Getpid(), c.calls.Add(1))
	for range 1 + c.IntN(3) {
		err = c.do(ctx, c.limiter(), r, nil)
	}
	return err
}

// settle takes an estimate, and charges less or more.
func (c *caller) settle(ctx context.Context) error {
	r, l, more := c.api("d"), c.limiter(), c.IntN(3) == 0
	if r.Tokens = 4; more {
		r.Key = c.key("e")
	}
	return c.one(r, func() (pglimit.Decision, error) {
		d, err := l.Do(context.WithoutCancel(ctx), r)
		c.granted = d
		return d, err
	}, func(told *line, err error) {
		switch actual := c.Int64N(4); {
		case err != nil || told.Granted == 0:
		case more: // what is charged beyond what is there explains denials, and grants nothing
			extra := *told
			extra.Call, extra.Granted, extra.Tokens, extra.Unknown = c.calls.Add(1), 0, 2, true
			c.tell([]line{extra})
			_, _ = l.Settle(ctx, c.granted, told.Granted+extra.Tokens)
		case actual%2 == 0: // it may have been given back even if that fails
			told.Returned = told.Granted - actual
			_, _ = l.Settle(ctx, c.granted, actual)
		default:
			told.Returned = 2
			_ = l.Refund(ctx, c.granted, told.Returned)
		}
	})
}

func (c *caller) wait(ctx context.Context) error {
	r := pglimit.Request{Limiter: "wait", Key: c.key("w"), Limit: waitLimit, Tokens: 1 + c.Int64N(3), MaxWait: longestWait}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(20+c.IntN(400))*time.Millisecond)
	defer cancel()
	return c.one(r, func() (pglimit.Decision, error) { return c.limiter().Do(ctx, r) }, func(l *line, _ error) {
		l.Waits = true // who gives up may have taken tokens for a while: they excuse denials
	})
}

func (c *caller) lease(ctx context.Context) error {
	r := pglimit.Request{Limiter: "leased", Key: c.key("l"), Limit: leasedLimit, Tokens: 1 + c.Int64N(2)}
	if c.IntN(20) == 0 {
		r.ID = fmt.Sprintf("%d-%d", os.Getpid(), c.calls.Add(1))
	}
	return c.do(ctx, c.leased, r, func(l *line, _ error) { l.Contended = l.Granted == 0 }) // another process may have the tokens
}

func (c *caller) change(ctx context.Context) error {
	key := c.key("p")
	r := pglimit.Request{Limiter: "changing", Key: key, Limit: looseLimit, Tokens: 1 + c.Int64N(4)}
	return c.one(r, func() (pglimit.Decision, error) { return c.changing.AllowN(context.WithoutCancel(ctx), key, r.Tokens) }, nil)
}

func (c *caller) calendar(ctx context.Context) error {
	r := pglimit.Request{Limiter: "calendar", Key: c.key("day"), Limit: calendarLimit, Tokens: 1 + c.Int64N(2)}
	return c.do(ctx, c.limiter(), r, nil)
}

// count takes from a bucket that does not refill, whose history goes to porcupine too.
func (c *caller) count(ctx context.Context) error {
	if !c.counting.TryLock() {
		return c.take(ctx)
	}
	defer c.counting.Unlock()
	if c.counted[c.round]++; c.counted[c.round] > mostCounts || c.blind[c.round] >= mostUnknown {
		return nil
	}
	r := pglimit.Request{Limiter: "counter", Key: fmt.Sprintf("%d:n", c.round), Limit: counterLimit, Tokens: 1 + c.Int64N(2)}
	err := c.do(ctx, c.limiter(), r, nil)
	if err != nil && !errors.Is(err, pglimit.ErrNothingTaken) {
		c.blind[c.round]++
	}
	return err
}

// permit works with a permit, and tells when it was certainly held.
func (c *caller) permit(ctx context.Context) error {
	p, err := c.permits.AcquireN(context.WithoutCancel(ctx), "k", 1+c.Int64N(2))
	if errors.Is(err, semaphore.ErrFull) {
		return nil
	} else if err != nil {
		return err
	}
	began := time.Now().UnixNano()
	select {
	case <-time.After(time.Duration(c.IntN(20)) * time.Millisecond):
	case <-p.Context().Done():
	}
	ended := time.Now().UnixNano()
	if p.Err() == nil { // asked behind the clock
		none := audit.Record{Limiter: "permits", Key: "k", Limit: audit.Limit{Limit: waitLimit}}
		c.tell([]line{{Record: none, Round: c.round, Began: began, Ended: ended, Permit: p.Weight}})
	}
	return p.Release(ctx)
}
