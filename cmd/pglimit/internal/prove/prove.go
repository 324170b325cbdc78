//go:build unix

// Package prove shows that the promises hold under faults, and that the same audit catches a product that breaks them.
//
//	prove.go    a run: rounds of faults, then the verdict
//	worker.go   a process whose callers ask for all that there is
//	faults.go   what is done to the processes, the connections and the server
//	proxy.go    cuts connections; server.go: a throwaway whose processes may be killed
//	round.go    what a round showed; linear.go: the checker of others
//	plants.go   faults planted in the product itself
package prove

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Config of a run.
type Config struct {
	Seed      uint64
	Length    time.Duration // of all, about
	Processes int
	Callers   int       // in each process
	Out       io.Writer // gets all decisions; nil: nobody does
	Pictures  string    // of histories that porcupine refuses: the beginning of their files' names
	Worker    []string  // the command that calls Work
	Say       func(string)
	Plants    bool // plant faults in the product, too
	Faults    []string
}

// Result of a run.
type Result struct {
	Seed      uint64    `json:"seed"`
	Server    string    `json:"server"`
	Took      int64     `json:"took_ns"`
	Processes int       `json:"processes"`
	Callers   int       `json:"callers"`
	Decisions int64     `json:"decisions"`
	Faults    []Fault   `json:"faults"`
	Permits   int       `json:"permits"`
	Most      int64     `json:"most_places_held"`
	Places    int64     `json:"places"`
	Plants    []Plant   `json:"plants"`
	Porcupine Porcupine `json:"porcupine"`
	Findings  []string  `json:"findings,omitempty"` // in words, each with the round's number and fault
}

// OK says that the promises held, and that the audit caught what was planted.
func (r Result) OK() bool {
	missed := slices.ContainsFunc(r.Plants, func(p Plant) bool { return p.Skipped == "" && p.Caught != p.Planted })
	return len(r.Findings) == 0 && !missed && r.Decisions > 0
}

// recoverWithin is how long a process may be without a decision when a fault is over, on a slow machine too.
const recoverWithin = 2 * time.Minute

// prover is a run under way.
type prover struct {
	Config
	random   *rand.Rand
	server   *server
	proxy    *proxy
	children []*child
	decided  int64
	timeout  time.Duration // of a decision

	mu     sync.Mutex
	rounds []*round
	failed error
}

// Run starts a server and processes, and injects faults one after another. The error says that there is no verdict.
func Run(ctx context.Context, config Config) (result Result, err error) {
	began := time.Now()
	p := &prover{Config: config, random: rand.New(rand.NewPCG(config.Seed, 0))} //nolint:gosec // drawn from the seed
	if p.server, err = startServer(ctx, config.Say); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.server.Stop()) }()
	if p.proxy, err = newProxy(p.server.address); err != nil {
		return result, err
	}
	defer p.proxy.listener.Close() //nolint:errcheck // it ends with the process
	result = Result{Seed: config.Seed, Server: p.server.Describe(), Processes: config.Processes, Callers: config.Callers, Places: places}
	reserved := max(10*time.Second, 3*time.Since(began)) // for the plants: as slow as the start was
	if !config.Plants {
		reserved = 0
	}
	err = p.run(ctx, began.Add(config.Length-reserved))
	if err == nil {
		err = p.judge(ctx, &result)
	}
	if err == nil && config.Plants {
		result.Plants, err = p.plants(ctx)
	}
	result.Took = int64(time.Since(began))
	return result, err
}

// run rounds until the end. Each takes at most some length, so that each fault has one.
func (p *prover) run(ctx context.Context, end time.Time) (err error) {
	if err := p.pace(ctx); err != nil {
		return err
	}
	first := p.next(nil)
	defer func() { err = errors.Join(err, p.stop(), p.failed) }()
	for i := range p.Processes {
		c, err := p.start(ctx, i)
		if err != nil {
			return err
		}
		p.children = append(p.children, c)
	}
	if err := p.await(ctx, first); err != nil {
		return err
	}
	changing, stop := context.WithCancel(ctx)
	var changes sync.WaitGroup
	changes.Go(func() { p.changeLimits(changing) })
	defer changes.Wait()
	defer stop()
	length := min(time.Until(end)/time.Duration(len(faults)), 5*time.Second)
	for ctx.Err() == nil {
		for _, i := range p.random.Perm(len(faults)) {
			f := &faults[i]
			if f.skip != nil && f.skip() != "" || p.Faults != nil && !slices.Contains(p.Faults, f.name) {
				continue
			}
			if time.Until(end) < length && len(p.rounds) > 1 {
				return nil
			}
			if err := p.round(ctx, f, time.Now().Add(length)); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return ctx.Err()
}

// round is quiet at first, then comes the fault, then the time to recover, and quiet again.
func (p *prover) round(ctx context.Context, f *fault, end time.Time) error {
	r := p.next(f)
	p.Say(fmt.Sprintf("round %d: %s, %s", r.number, f.name, f.does))
	p.phase(2 * r.number)
	p.pass(ctx, p.short())
	r.from = time.Now().UnixNano()
	if err := f.inject(ctx, p); err != nil {
		return err
	}
	p.mu.Lock()
	r.to = time.Now().UnixNano()
	p.mu.Unlock()
	if err := p.await(ctx, r); err != nil {
		return err
	}
	p.phase(2*r.number + 1)
	p.pass(ctx, max(p.short(), time.Until(end)))
	return nil
}

// await a decision of each process.
func (p *prover) await(ctx context.Context, r *round) error {
	for deadline := time.Now().Add(recoverWithin); ; p.pass(ctx, 10*time.Millisecond) {
		p.mu.Lock()
		recovered := r.hasRecovered(p.alive())
		p.mu.Unlock()
		if recovered {
			return nil
		} else if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%v later a process has had no decision yet", recoverWithin), ctx.Err())
		}
	}
}

// pace sets the time limit of a decision, as fast as this machine is now.
func (p *prover) pace(ctx context.Context) error {
	began := time.Now()
	var connects errgroup.Group
	for range 2 * poolSize {
		connects.Go(func() error { return p.server.do(ctx, database, func(conn *pgx.Conn) error { return conn.Ping(ctx) }) })
	}
	err := connects.Wait()
	p.timeout = min(max(time.Second, 10*time.Since(began)), 10*time.Second)
	return err
}

func (p *prover) alive() (workers []int) {
	for _, c := range p.children {
		workers = append(workers, c.id)
	}
	return workers
}

// next begins a round.
func (p *prover) next(f *fault) *round {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{number: len(p.rounds), fault: f}
	p.rounds = append(p.rounds, r)
	return r
}

func (p *prover) phase(n int) {
	for _, c := range p.children {
		c.tell("phase", int64(n))
	}
}

// short is a time drawn from the seed.
func (p *prover) short() time.Duration {
	return 300*time.Millisecond + time.Duration(p.random.Int64N(int64(400*time.Millisecond)))
}

func (p *prover) pass(ctx context.Context, length time.Duration) {
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
}

// changeLimits in the table, again and again, also while the server is away.
func (p *prover) changeLimits(ctx context.Context) {
	for tight := true; ctx.Err() == nil; tight = !tight {
		_ = p.server.do(ctx, database, func(conn *pgx.Conn) error {
			rule := limits.Rule{Limiter: "changing", Limit: looseLimit.String(), Note: application}
			if tight {
				rule.Limit = tightLimit.String()
			}
			_, err := conn.Exec(ctx, "select pglimit.set_limit($1::text, $2::text, note => $3::text)", rule.Limiter, rule.Limit, rule.Note)
			return err
		})
		p.pass(ctx, 500*time.Millisecond)
	}
}

// child is a worker process.
type child struct {
	id    int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	read  chan struct{} // closed when all that it told is known
}

func (c *child) tell(verb string, n int64) {
	_, _ = fmt.Fprintln(c.stdin, verb, n) // it may have been killed
}

func (p *prover) start(ctx context.Context, id int) (*child, error) {
	address, err := url.Parse(p.server.URL(database))
	if err != nil {
		return nil, err
	}
	address.Host = p.proxy.listener.Addr().String()
	c := &child{id: id, cmd: exec.CommandContext(ctx, p.Worker[0], p.Worker[1:]...), read: make(chan struct{})}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	work := task{URL: address.String(), Worker: id, Callers: p.Callers, Seed: p.random.Uint64(), Round: len(p.rounds) - 1, Timeout: p.timeout}
	text, err := json.Marshal(work)
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(c, out)
	_, err = fmt.Fprintf(c.stdin, "%s\n", text)
	return c, err
}

// listen to what a worker tells. What it did not hear an answer of when it ended is unknown.
func (p *prover) listen(c *child, out io.Reader) {
	defer close(c.read)
	open := make(map[uint64]line)
	from := bufio.NewReaderSize(out, 1<<16)
	for {
		text, err := from.ReadBytes('\n')
		if err != nil { // also in the middle of a line: it was killed there
			break
		}
		l := line{worker: c.id}
		if err := json.Unmarshal(bytes.TrimSpace(text), &l); err != nil {
			p.fail(err)
			continue
		}
		if l.Begin {
			open[l.Call] = l
			continue
		}
		delete(open, l.Call)
		p.add(l)
	}
	for _, l := range open {
		l.Ended = l.Began
		p.add(l)
	}
}

func (p *prover) add(l line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.rounds[l.Round].add(l); err != nil {
		p.failed = cmp.Or(p.failed, err)
	}
	if l.Permit > 0 {
		return
	}
	if l.Error == "" && !l.Unknown {
		p.decided++
	}
	if p.Out != nil {
		if err := json.NewEncoder(p.Out).Encode(struct {
			audit.Record
			Round  int    `json:"round"`
			Worker int    `json:"worker"`
			Began  int64  `json:"began"`
			Ended  int64  `json:"ended"`
			Error  string `json:"error,omitempty"`
		}{l.Record, l.Round, l.worker, l.Began, l.Ended, l.Error}); err != nil {
			p.failed = cmp.Or(p.failed, err)
		}
	}
}

func (p *prover) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = cmp.Or(p.failed, err)
}

// replace kills a process, and starts another.
func (p *prover) replace(ctx context.Context, i int) (err error) {
	old := p.children[i]
	_ = old.cmd.Process.Kill()
	<-old.read
	_ = old.cmd.Wait()
	p.children[i], err = p.start(ctx, old.id+p.Processes)
	return err
}

// stop the processes, which finish what they have begun.
func (p *prover) stop() error {
	var failures []error
	for _, c := range p.children {
		_ = c.stdin.Close()
	}
	for _, c := range p.children {
		<-c.read
		if err := c.cmd.Wait(); err != nil {
			failures = append(failures, fmt.Errorf("a process: %w", err))
		}
	}
	return errors.Join(failures...)
}

// judge all rounds.
func (p *prover) judge(ctx context.Context, result *Result) error {
	owed := make(map[string]int64)
	pool, err := pgxpool.New(ctx, p.server.URL(database))
	if err != nil {
		return err
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, "select key, tokens_owed from pglimit.buckets where limiter = 'counter'")
	if err != nil {
		return err
	}
	var key string
	var tokens int64
	if _, err := pgx.ForEachRow(rows, []any{&key, &tokens}, func() error { owed[key] = tokens; return nil }); err != nil {
		return err
	}
	of := make(map[string]int)
	for i := range faults {
		f := Fault{Name: faults[i].name, Does: faults[i].does}
		if faults[i].skip != nil {
			f.Skipped = faults[i].skip()
		}
		of[f.Name] = len(result.Faults)
		result.Faults = append(result.Faults, f)
	}
	var permits []line
	for _, r := range p.rounds[1:] {
		f := &result.Faults[of[r.fault.name]]
		for _, found := range r.judge(f, owed[fmt.Sprintf("%d:n", r.number)]) {
			result.Findings = append(result.Findings, fmt.Sprintf("round %d, %s: %s", r.number, r.fault.name, found))
		}
		refused := result.Porcupine.Refused
		if err := result.Porcupine.check(r.counts, fmt.Sprintf("%s-round-%d.html", p.Pictures, r.number), 5*time.Second); err != nil {
			return err
		}
		if result.Porcupine.Refused > refused {
			result.Findings = append(result.Findings, fmt.Sprintf("round %d, %s: porcupine finds no order of the counter's requests", r.number, r.fault.name))
		}
		permits = append(permits, r.permits...)
	}
	result.Decisions, result.Permits, result.Most = p.decided, len(permits), mostPermits(permits)
	if result.Most > places {
		result.Findings = append(result.Findings, fmt.Sprintf("permits: %d of %d places were held at once", result.Most, places))
	}
	return nil
}
