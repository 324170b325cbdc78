//go:build unix

// Package prove shows that the promises hold under faults, and that the same audit catches a product that breaks them.
//
//	prove.go    a run: rounds of faults, then the verdict
//	worker.go   a process whose callers ask in every way that there is
//	faults.go   what is done to the processes, the connections and the server
//	proxy.go    cuts connections; server.go: a throwaway whose processes may be killed
//	round.go    what a round showed; linear.go: the checker that others wrote
//	plants.go   faults planted in the product itself
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
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config of a run.
type Config struct {
	Seed      uint64
	Length    time.Duration // of all, about
	Processes int
	Callers   int       // in each process
	Out       io.Writer // gets all decisions but those of a clock that stepped; nil: nobody does
	Pictures  string    // of histories that porcupine refuses: the beginning of their files' names
	Worker    []string  // the command that calls Work
	Say       func(string)
	Faults    []string // only these; nil: all
	NoPlants  bool
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

// recoverWithin is how long a process may be without a grant when a fault is over, on a slow machine too.
const recoverWithin = 2 * time.Minute

// prover is a run under way.
type prover struct {
	Config
	random   *rand.Rand
	server   *server
	proxy    *proxy
	timeout  time.Duration // of a decision
	children []*child

	mu      sync.Mutex
	rounds  []*round
	permits []line

	lockedOut []string // findings
	decided   int64
	failed    error
}

// Run starts a server and processes, and injects faults one after another. The error says that there is no verdict.
func Run(ctx context.Context, config Config) (result Result, err error) {
	began := time.Now()
	p := &prover{Config: config, random: rand.New(rand.NewPCG(config.Seed, 0))} //nolint:gosec // drawn from the seed
	if p.server, err = startServer(ctx, config.Say); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.server.Stop()) }()
	address, err := url.Parse(p.server.URL(""))
	if err != nil {
		return result, err
	}
	if p.proxy, err = newProxy(address.Host); err != nil {
		return result, err
	}
	defer p.proxy.Close() //nolint:errcheck // it ends with the process
	result = Result{Seed: config.Seed, Server: p.server.Describe(), Processes: config.Processes, Callers: config.Callers, Places: places}
	slow, end := time.Since(began), began.Add(config.Length) // as this machine is
	p.timeout = min(max(time.Second, slow/2), 10*time.Second)
	if !config.NoPlants { // they take as long as the start did, or longer
		end = end.Add(-max(10*time.Second, slow*3/2))
	}
	if err = p.run(ctx, end); err == nil {
		err = p.judge(ctx, &result)
	}
	if err == nil && !config.NoPlants {
		result.Plants, err = p.plants(ctx)
	}
	result.Took = int64(time.Since(began))
	return result, err
}

// run rounds until the end, each fault once if there is time, and then again.
func (p *prover) run(ctx context.Context, end time.Time) (err error) {
	start := p.next(nil)
	defer func() { err = cmp.Or(err, p.failed) }()
	defer func() { err = cmp.Or(err, p.stop()) }()
	for i := range p.Processes {
		c, err := p.start(ctx, i)
		if err != nil {
			return err
		}
		p.children = append(p.children, c)
	}
	if err := p.await(ctx, start); err != nil {
		return err
	}
	changing, stop := context.WithCancel(ctx)
	var changes sync.WaitGroup
	changes.Go(func() { p.changeLimits(changing) })
	defer changes.Wait()
	defer stop()
	length := min(time.Until(end)/time.Duration(len(faults)), 5*time.Second)
	for {
		for _, i := range p.random.Perm(len(faults)) {
			f := &faults[i]
			if f.skipped() != "" || p.Faults != nil && !slices.Contains(p.Faults, f.name) {
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
}

// round is quiet at first, then comes the fault, then the time to recover, and quiet again.
func (p *prover) round(ctx context.Context, f *fault, end time.Time) error {
	r := p.next(f)
	p.Say(fmt.Sprintf("round %d: %s, %s", r.number, f.name, f.does))
	p.phase(2 * r.number)
	pass(ctx, p.short())
	r.from = time.Now().UnixNano()
	if err := f.inject(ctx, p); err != nil {
		return err
	}
	if err := p.await(ctx, r); ctx.Err() == nil && err != nil {
		p.lockedOut = append(p.lockedOut, fmt.Sprintf("round %d, %s: %v", r.number, f.name, err))
	}
	p.phase(2*r.number + 1)
	pass(ctx, max(p.short(), time.Until(end)))
	return ctx.Err()
}

// next begins a round.
func (p *prover) next(f *fault) *round {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{number: len(p.rounds), fault: f, first: make(map[int]int64)}
	p.rounds = append(p.rounds, r)
	return r
}

func (p *prover) phase(n int) {
	for _, c := range p.children {
		c.tell("phase", int64(n))
	}
}

// await a grant of Postgres's to each process, now that the fault is over.
func (p *prover) await(ctx context.Context, r *round) error {
	p.mu.Lock()
	r.to = time.Now().UnixNano()
	p.mu.Unlock()
	for deadline := time.Now().Add(recoverWithin); time.Now().Before(deadline) && ctx.Err() == nil; pass(ctx, 10*time.Millisecond) {
		p.mu.Lock()
		waits := slices.ContainsFunc(p.children, func(c *child) bool { return r.first[c.id] == 0 })
		p.mu.Unlock()
		if !waits {
			return nil
		}
	}
	return cmp.Or(ctx.Err(), fmt.Errorf("%v later Postgres has granted nothing to a process yet", recoverWithin))
}

// short is a time drawn from the seed.
func (p *prover) short() time.Duration {
	return 300*time.Millisecond + time.Duration(p.random.Int64N(int64(400*time.Millisecond)))
}

// changeLimits in the table, again and again, also while the server is away.
func (p *prover) changeLimits(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		_ = p.server.do(ctx, database, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "select pglimit.set_limit('changing', $1, note => 'prove')", []string{tightLimit.String(), looseLimit.String()}[n%2])
			return err
		})
		pass(ctx, 500*time.Millisecond)
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
	work := task{
		URL:    strings.Replace(p.server.URL(database), p.proxy.server, p.proxy.Addr().String(), 1),
		Worker: id, Callers: p.Callers, Seed: p.random.Uint64(), Round: len(p.rounds) - 1, Timeout: p.timeout,
	}
	text, err := json.Marshal(work)
	if err != nil {
		return nil, err
	}
	c := &child{id: id, cmd: exec.CommandContext(ctx, p.Worker[0], p.Worker[1:]...), read: make(chan struct{})}
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent
	c.stdin, err = c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
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
func (p *prover) listen(c *child, from io.Reader) {
	defer close(c.read)
	open := make(map[uint64]line)
	lines := bufio.NewReaderSize(from, 1<<16)
	for text, err := lines.ReadBytes('\n'); err == nil; text, err = lines.ReadBytes('\n') { // it may be killed in a line
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			p.add(line{}, err)
		} else if l.Begin {
			open[l.Call] = l
		} else {
			delete(open, l.Call)
			p.add(l, nil)
		}
	}
	for _, l := range open {
		l.Begin, l.Ended = false, l.Began
		p.add(l, nil)
	}
}

// add what a worker told, or why that is not known.
func (p *prover) add(l line, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
	case l.Permit > 0 && p.rounds[l.Round].steps(): // its time is not the server's
	case l.Permit > 0:
		p.permits = append(p.permits, l)
	default:
		r := p.rounds[l.Round]
		if err = r.add(l); err == nil && p.Out != nil && !r.steps() { // whose times are no measure
			err = json.NewEncoder(p.Out).Encode(l)
		}
		if l.Error == "" && !l.Unknown {
			p.decided++
		}
	}
	p.failed = cmp.Or(p.failed, err)
}

// replace kills a process, and starts another.
func (p *prover) replace(ctx context.Context, i int) (err error) {
	old := p.children[i]
	_ = old.cmd.Process.Kill()
	<-old.read
	_ = old.cmd.Wait()
	started, err := p.start(ctx, old.id+p.Processes)
	if err == nil {
		p.children[i] = started
	}
	return err
}

// stop the processes, which finish what they have begun.
func (p *prover) stop() (err error) {
	for _, c := range p.children {
		_ = c.stdin.Close()
	}
	for _, c := range p.children {
		<-c.read
		err = errors.Join(err, c.cmd.Wait())
	}
	return err
}

// judge all rounds.
func (p *prover) judge(ctx context.Context, result *Result) error {
	owed := make(map[string]int64)
	err := p.server.do(ctx, database, func(conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, "select key, tokens_owed from pglimit.buckets where limiter = 'counter'")
		var key string
		var tokens int64
		_, err := pgx.ForEachRow(rows, []any{&key, &tokens}, func() error { owed[key] = tokens; return nil })
		return err
	})
	if err != nil {
		return err
	}
	result.Findings = p.lockedOut
	for i := -1; i < len(faults); i++ {
		f := Fault{Name: "none", Does: "before the first fault"}
		var of *fault
		if i >= 0 {
			of = &faults[i]
			f = Fault{Name: of.name, Does: of.does, Skipped: of.skipped()}
		}
		for _, r := range p.rounds {
			if r.fault != of {
				continue
			}
			found := r.judge(&f, owed[fmt.Sprintf("%d:n", r.number)])
			ok, err := result.Porcupine.check(r.counts, fmt.Sprintf("%s-round-%d.html", p.Pictures, r.number))
			if err != nil {
				return err
			} else if !ok {
				found = append(found, "counter: porcupine finds no order for its requests")
			}
			for _, what := range found {
				result.Findings = append(result.Findings, fmt.Sprintf("round %d, %s: %s", r.number, f.Name, what))
			}
		}
		result.Faults = append(result.Faults, f)
	}
	result.Decisions, result.Permits, result.Most = p.decided, len(p.permits), mostPermits(p.permits)
	if result.Most > places {
		result.Findings = append(result.Findings, fmt.Sprintf("permits: %d of %d places were held at once", result.Most, places))
	}
	return nil
}
