package pglimit_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first seed of TestSimulation")
	seeds     = flag.Uint64("seeds", 2000, "how many seeds TestSimulation tries; a tenth of them with -short")
)

// Callers of a few processes ask for a few keys in every way there is, with any stages, of a server that is slow, down,
// silent, or gone before its answer, and whose rows others hold locked. Whatever happens, nobody is granted what the
// server did not grant, nobody is denied what is there, everybody has an answer in time, and nothing is lost unseen.
//
// The draws of a seed are the same each time. The order of goroutines is not, so a seed that fails may need some runs.
func TestSimulation(t *testing.T) {
	t.Parallel()
	tries := *seeds
	if testing.Short() {
		tries = max(1, tries/10)
	}
	for seed := *firstSeed; seed < *firstSeed+tries && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSimulation(t, seed)
				s.run()
				if c := &s.config; t.Failed() {
					t.Logf("%v, Timeout %v, %d processes, %d %% faults, %+v %+v %+v",
						c.Limit, c.Timeout, len(s.limiters), s.faults, c.Combine, c.Memory, c.Leases)
				}
			})
			if t.Failed() {
				t.Logf("again: go test ./pglimit -run TestSimulation -seeds 1 -count 100 -failfast -seed %d", seed)
			}
		})
	}
}

// simulation is a server and those who ask it.
type simulation struct {
	*pglimittest.Strategy
	t        *testing.T
	seed     uint64
	config   pglimit.Config
	faults   int // of a hundred calls, about
	limiters []*pglimit.Limiter

	mu      sync.Mutex
	random  *rand.Rand           // of the server
	held    map[string]time.Time // keys, until then
	down    time.Time            // until then
	granted int64                // by the server, out of which it was given back
	back    int64
	server  audit.Histories // what it granted, and which denials callers were told
	callers audit.Histories // what they were granted, dated when they may use it
	kept    int64           // of which they gave nothing back
	cut     int64           // asked for by callers whose own calls ended with them
	ids     map[string]bool // that were granted
	closing map[*pglimit.Limiter]time.Time
}

// simulated is the pool of one process, and what it calls.
type simulated struct {
	*simulation
	busy map[string]bool // keys for which a call is under way
}

// pool of a process.
type pool struct {
	pglimit.Pool
	of *simulation
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 0))
	s := &simulation{
		Strategy: pglimittest.MemoryOn(time.Now), t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 1)),
		held: make(map[string]time.Time), ids: make(map[string]bool), closing: make(map[*pglimit.Limiter]time.Time),
	}
	if r.IntN(3) > 0 {
		s.faults = 1 + r.IntN(30)
	}
	limit := pglimit.Limit{Tokens: 1 + r.Int64N(2000), Period: time.Second, Burst: 1 + r.Int64N(200)}
	s.config = pglimit.Config{Name: "api", Limit: limit, Timeout: time.Duration(100+r.IntN(900)) * time.Millisecond, MaxWait: 2 * time.Second}
	c := &s.config
	c.Combine.Off, c.Memory.Off, c.Breaker.Off, c.Leases.On = r.IntN(4) == 0, r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(3) == 0
	c.Combine.Lanes, c.Leases.TTL = r.IntN(3), time.Duration(10+r.IntN(500))*time.Millisecond
	if r.IntN(4) == 0 {
		c.NewKeys.Limit = pglimit.PerSecond(1 + r.Int64N(20))
	}
	if r.IntN(4) == 0 {
		c.MaxWaiting = 1 + r.IntN(20)
	}
	for range 1 + r.IntN(3) {
		limiter, err := pglimit.New(pool{of: s}, simulated{s, make(map[string]bool)}, s.config)
		if err != nil {
			t.Fatal(err)
		}
		s.limiters = append(s.limiters, limiter)
	}
	return s
}

func (s *simulation) run() {
	var work sync.WaitGroup
	for caller := range 3 + s.draw(20) {
		r := rand.New(rand.NewPCG(s.seed, uint64(2+caller)))
		work.Go(func() {
			for range 1 + r.IntN(30) {
				s.ask(r, s.limiters[r.IntN(len(s.limiters))])
				time.Sleep(time.Duration(r.ExpFloat64() * float64(5*time.Millisecond)))
			}
		})
	}
	work.Go(func() { // somebody else
		for range s.draw(10) {
			time.Sleep(time.Duration(s.draw(100)) * time.Millisecond)
			key, until := fmt.Sprint(s.draw(4)), time.Now().Add(time.Duration(s.draw(40))*time.Millisecond)
			s.mu.Lock()
			if s.held[key] = until; s.faults > 0 && s.random.IntN(4) == 0 {
				s.down = until.Add(time.Duration(s.random.IntN(500)) * time.Millisecond)
			}
			s.mu.Unlock()
		}
	})
	if s.draw(3) == 0 {
		work.Go(func() {
			time.Sleep(time.Duration(s.draw(200)) * time.Millisecond)
			s.close(s.limiters[0])
		})
	}
	work.Wait()
	var lost int64
	for _, l := range s.limiters {
		s.close(l)
		stats := l.Stats()
		lost += stats.LostTokens + stats.UnspentTokens
		if stats.Waiting != 0 || stats.Asleep != 0 {
			s.t.Errorf("somebody still waits: %+v", stats)
		}
	}
	limit := s.config.Limit
	if over := s.callers.Check(nil, limit).Over; over.Tokens > 0 {
		s.t.Errorf("callers were granted more than the limit: %v", over)
	}
	if report := s.server.Check(nil, limit); report.NotDueTotal > 0 && !s.config.Leases.On { // leased tokens are not refilled
		s.t.Errorf("callers were denied tokens that were there: %v", report)
	}
	if s.kept > s.granted-s.back {
		s.t.Errorf("callers keep %d tokens, the server has granted %d and got %d back", s.kept, s.granted, s.back)
	}
	if gone := s.granted - s.back - s.kept; s.faults == 0 && gone > lost+s.cut {
		s.t.Errorf("%d tokens are gone (granted %d, back %d, kept %d), and Stats tells of %d, callers of %d",
			gone, s.granted, s.back, s.kept, lost, s.cut)
	}
}

func (s *simulation) close(l *pglimit.Limiter) {
	s.mu.Lock()
	if s.closing[l].IsZero() {
		s.closing[l] = time.Now()
	}
	s.mu.Unlock()
	if err := l.Close(s.t.Context()); err != nil && s.faults == 0 {
		s.t.Error(err)
	}
}

// closed says that the Limiter is closed for one who has come then. Who has come before is answered, if the server
// answers and the caller neither waits nor leaves.
func (s *simulation) closed(l *pglimit.Limiter, came time.Time, leaves bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.closing[l]
	return !at.IsZero() && (leaves || s.faults > 0 || !came.Before(at))
}

// ask in one of all ways.
func (s *simulation) ask(r *rand.Rand, l *pglimit.Limiter) {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	leaves := r.IntN(5) == 0
	if leaves {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(60))*time.Millisecond)
		defer cancel()
	}
	burst := s.config.Limit.Burst
	request := func() pglimit.Request {
		q := pglimit.Request{Key: fmt.Sprint(r.IntN(4)), Tokens: 1 + r.Int64N(min(burst, 9))}
		switch r.IntN(8) {
		case 0:
			q.Unit = 1
		case 1:
			q.Tokens = 1 + r.Int64N(burst)
		case 2:
			q.Tokens = 0
		case 3:
			q.ID = fmt.Sprint(q.Key, q.Tokens, r.IntN(3))
		}
		return q
	}
	began, longest := time.Now(), 2*s.config.Timeout+10*time.Millisecond // a lease, and the call behind it
	q, q2 := request(), request()
	var decisions []pglimit.Decision
	var err error
	var asked []pglimit.Request
	switch r.IntN(8) {
	default:
		var d pglimit.Decision
		d, err = l.Do(ctx, q)
		asked, decisions = []pglimit.Request{q}, []pglimit.Decision{d}
	case 0:
		asked = []pglimit.Request{q, q2, request()}
		decisions, err = l.DoEach(ctx, asked...)
	case 1:
		asked = []pglimit.Request{{Key: q.Key, Tokens: max(1, q.Tokens)}, {Key: q.Key, Limiter: "other", Tokens: 1}}
		if r.IntN(2) == 0 {
			asked[0].Tokens, asked[0].MaxWait = 1, time.Duration(1+r.IntN(500))*time.Millisecond
			longest = 2*longest + asked[0].MaxWait
		}
		var g pglimit.Group
		g, err = l.DoAll(ctx, asked...)
		decisions = g.Decisions
		if asked[0].MaxWait > 0 && g.Allowed && g.Delay > asked[0].MaxWait {
			s.t.Errorf("%+v: the wait was longer: %+v", asked, g)
		}
	case 2, 4: // mostly for as many tokens as others, who may take the place of one who leaves
		q = pglimit.Request{Key: q.Key, Tokens: 1 + r.Int64N(min(burst, 2)), MaxWait: time.Duration(1+r.IntN(500)) * time.Millisecond}
		var d pglimit.Decision
		d, err = l.Do(ctx, q)
		asked, decisions, longest = []pglimit.Request{q}, []pglimit.Decision{d}, 2*longest+q.MaxWait
		if d.Allowed && d.Delay > q.MaxWait {
			s.t.Errorf("%+v: the wait was longer: %+v", q, d)
		}
	case 3:
		q.Tokens = max(1, q.Tokens)
		var reserved *pglimit.Reservation
		if reserved, err = l.ReserveN(ctx, q.Key, q.Tokens); err == nil {
			if decisions = []pglimit.Decision{reserved.Decision()}; r.IntN(3) == 0 {
				time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
				_ = reserved.Cancel(ctx)
				s.add(&s.cut, decisions[0].Granted)
				return
			}
		}
		asked = []pglimit.Request{{Key: q.Key, Tokens: q.Tokens, MaxWait: time.Second}}
	}
	if s.faults == 0 && !leaves && errors.Is(err, context.DeadlineExceeded) {
		s.t.Errorf("%+v: nothing was in the way: %v", asked, err)
	}
	if took := time.Since(began); took > longest {
		s.t.Errorf("%+v took %v, and may take %v", asked, took, longest)
	}
	if errors.Is(err, pglimit.ErrClosed) && s.closed(l, began, leaves || asked[0].MaxWait > 0) {
		return
	}
	s.tell(r, l, asked, decisions, err)
}

// tell the judge what callers were told. Some give back what they got.
func (s *simulation) tell(r *rand.Rand, l *pglimit.Limiter, asked []pglimit.Request, decisions []pglimit.Decision, err error) {
	expected := []error{
		context.Canceled, context.DeadlineExceeded, rate.ErrUnavailable, rate.ErrNothingTaken, rate.ErrOverloaded,
		pglimit.ErrWaitTooLong, pglimit.ErrTooManyNewKeys,
	}
	if err != nil && (s.faults == 0 && errors.Is(err, rate.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) ||
		!slices.ContainsFunc(expected, func(of error) bool { return errors.Is(err, of) })) {
		s.t.Errorf("%+v: %v", asked, err)
	}
	for i, q := range asked {
		var d pglimit.Decision
		if i < len(decisions) {
			d = decisions[i]
		}
		if err != nil && d.Granted == 0 {
			if s.config.Combine.Off || q.ID != "" {
				s.add(&s.cut, q.Tokens)
			}
			continue
		}
		bucket := d.Limiter + "/" + d.Key
		if unit := cmp.Or(q.Unit, max(q.Tokens, 1)); d.Granted > q.Tokens || d.Granted%unit != 0 {
			s.t.Errorf("%+v: %+v", q, d)
		}
		switch {
		case d.Granted == 0:
			if d.Source == pglimit.FromDatabase || d.Source == pglimit.FromMemory {
				e := audit.FromDecision(q.Tokens, max(q.Unit, q.Tokens), d)
				if q.Unit > 0 {
					e.Unit = q.Unit
				}
				if d.Allowed || q.MaxWait > 0 { // it is another bucket of the group that lacks tokens
					continue
				}
				s.note(&s.server, bucket, e)
			}
			continue
		case q.ID != "" && !s.first("caller "+bucket+q.ID):
			continue
		case q.ID == "" && r.IntN(6) == 0:
			ctx, cancel := context.WithTimeout(s.t.Context(), time.Duration(r.IntN(20))*time.Millisecond)
			_ = l.Refund(ctx, d, 1+r.Int64N(d.Granted)) // the rest is never used
			cancel()
			if s.faults == 0 {
				s.add(&s.cut, d.Granted)
			}
			continue
		}
		s.add(&s.kept, d.Granted)
		s.note(&s.callers, bucket, audit.Event{At: d.At.Add(d.Delay).UnixNano(), Wanted: q.Tokens, Unit: 1, Granted: d.Granted})
	}
}

func (s *simulation) add(to *int64, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*to += n
}

func (s *simulation) note(to *audit.Histories, bucket string, e audit.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to.Add(bucket, e)
}

// first says that the ID was not granted to that party before.
func (s *simulation) first(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.ids[id]
	s.ids[id] = true
	return !before
}

func (s *simulation) draw(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.IntN(n)
}

// asks says that callers ask for buckets of the limiter: the others are those of new keys.
func asks(limiter string) bool { return limiter == "api" || limiter == "other" }

// Take of a process that combines: it has one call for a key under way. Groups and IDs have calls of their own.
func (p simulated) Take(ctx context.Context, session rate.Session, requests []rate.Request) ([]rate.Decision, error) {
	if !p.config.Combine.Off && requests[0].Group == 0 && requests[0].ID == "" {
		keys := make(map[string]bool)
		p.mu.Lock()
		for _, r := range requests {
			if r.Tokens > 0 { // else it locks nothing
				keys[r.Limiter+"/"+r.Key] = true
			}
		}
		for key := range keys {
			if p.busy[key] {
				p.t.Errorf("%s has two calls under way", key)
			}
			p.busy[key] = true
		}
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			for key := range keys {
				delete(p.busy, key)
			}
		}()
	}
	return p.simulation.Take(ctx, session, requests)
}

// Take is that of the server.
func (s *simulation) Take(ctx context.Context, session rate.Session, requests []rate.Request) (decisions []rate.Decision, err error) {
	if err := s.wait(ctx, requests); err != nil {
		return nil, err
	}
	err = s.call(ctx, func(ctx context.Context) error {
		decisions, err = s.Strategy.Take(ctx, session, requests)
		for i, d := range decisions {
			r := &requests[i]
			if !asks(r.Limiter) || d.Granted == 0 || r.ID != "" && !s.first("server "+r.Limiter+"/"+r.Key+r.ID) {
				continue
			}
			s.add(&s.granted, d.Granted)
			s.note(&s.server, r.Limiter+"/"+r.Key, audit.Event{At: d.At.UnixNano(), Wanted: d.Granted, Unit: 1, Granted: d.Granted})
		}
		return err
	})
	return slices.Clone(decisions), err
}

// wait for rows that somebody holds.
func (s *simulation) wait(ctx context.Context, requests []rate.Request) error {
	impatient := slices.ContainsFunc(requests, func(r rate.Request) bool {
		return r.Impatient || r.Bucket() != requests[0].Bucket() && (r.Group == 0 || r.Group != requests[0].Group)
	})
	for began := time.Now(); ; {
		var rows []rate.Bucket
		s.mu.Lock()
		for _, r := range requests {
			if r.Tokens > 0 && r.Limiter == "api" && time.Now().Before(s.held[r.Key]) {
				rows = append(rows, r.Bucket())
			}
		}
		s.mu.Unlock()
		switch {
		case len(rows) == 0:
			return nil
		case impatient && time.Since(began) >= 20*time.Millisecond:
			return &rate.HeldError{Held: rows, Err: fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken)}
		case pause(ctx, time.Millisecond) != nil:
			return fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
}

// call the server, which may fail in many ways.
func (s *simulation) call(ctx context.Context, do func(context.Context) error) error {
	delay := func() time.Duration { return time.Duration(s.draw(3000)) * time.Microsecond }
	fault := -1
	if s.draw(100) < s.faults {
		fault = s.draw(5)
	}
	if pause(ctx, delay()) != nil || s.isDown() && pause(ctx, time.Hour) != nil {
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	switch fault {
	case 0:
		return fmt.Errorf("%w: refused", rate.ErrUnavailable)
	case 1:
		return fmt.Errorf("%w: undone", rate.ErrNothingTaken)
	}
	err := do(context.WithoutCancel(ctx))
	switch {
	case fault == 2:
		return fmt.Errorf("%w: the connection broke", rate.ErrUnavailable)
	case fault == 3 && pause(ctx, time.Hour) != nil, pause(ctx, delay()) != nil:
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	return err
}

func (s *simulation) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.down)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// GiveBack is that of the server.
func (s *simulation) GiveBack(ctx context.Context, session rate.Session, refunds []rate.Refund) error {
	return s.call(ctx, func(ctx context.Context) error {
		for i := range refunds {
			if asks(refunds[i].Limiter) {
				s.add(&s.back, refunds[i].Tokens)
			}
		}
		return s.Strategy.GiveBack(ctx, session, refunds)
	})
}

// Lease is that of the server. Callers have what is spent of it.
func (s *simulation) Lease(ctx context.Context, session rate.Session, r rate.LeaseRequest) (lease rate.Lease, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		if lease, err = s.Strategy.Lease(ctx, session, r); err == nil {
			s.add(&s.granted, lease.Tokens-(r.Settle.Tokens-r.Spent))
			s.note(&s.server, r.Limiter+"/"+r.Key, audit.Event{At: lease.At.UnixNano(), Wanted: lease.Tokens, Unit: 1, Granted: lease.Tokens})
		}
		return err
	})
	if err != nil {
		return rate.Lease{}, err
	}
	return lease, nil
}

// Exec is a sign of life.
func (p pool) Exec(ctx context.Context, _ string, _ ...any) (tag pgconn.CommandTag, err error) {
	if pause(ctx, time.Millisecond) != nil || p.of.isDown() && pause(ctx, time.Hour) != nil {
		err = ctx.Err()
	}
	return tag, err
}
