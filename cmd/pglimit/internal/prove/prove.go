//go:build unix

// Package prove shows that the promises hold under faults, and that the same audit catches a product that breaks them.
package prove

import (
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config of a run.
type Config struct {
	Seed   uint64
	Length time.Duration // of all, about
	Out    io.Writer     // gets all decisions but those of a clock that stepped; nil: nobody does
	Worker []string      // the command that calls Work
	Say    func(string)
	Faults []string // only these; nil: all
}

// Result of a run.
type Result struct {
	Seed      uint64    `json:"seed"`
	Server    string    `json:"server"`
	Took      int64     `json:"took_ns"`
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
	missed := slices.ContainsFunc(r.Plants, func(p Plant) bool { return p.Caught != p.Planted })
	return len(r.Findings) == 0 && !missed && r.Decisions > 0
}

// prover is a run under way.
type prover struct {
	Config
	random   *rand.Rand
	server   *server
	proxy    *proxy
	timeout  time.Duration // of a decision
	children []*child
	rounds   []*round
	shown    []Fault // as faults
	findings []string

	mu   sync.Mutex
	told map[uint64]line // by call, the last
}

// Run starts a server and processes, and injects faults one after another. The error says that there is no verdict.
func Run(ctx context.Context, config Config) (result Result, err error) {
	began := time.Now()
	p := &prover{Config: config, told: make(map[uint64]line)}
	p.random = rand.New(rand.NewPCG(config.Seed, 0)) //nolint:gosec // drawn from the seed
	if p.server, err = startServer(ctx, config.Say); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, p.server.Stop()) }()
	if err = p.server.migrate(ctx); err != nil {
		return result, err
	}
	address, err := url.Parse(p.server.URL(""))
	if err != nil {
		return result, err
	}
	if p.proxy, err = newProxy(address.Host); err != nil {
		return result, err
	}
	defer p.proxy.Close()     //nolint:errcheck // it ends with the process
	slow := time.Since(began) // as this machine is
	p.timeout = min(max(time.Second, slow/2), 10*time.Second)
	// The plants take as long as the start did, or longer.
	if err = p.run(ctx, began.Add(config.Length-max(10*time.Second, slow*3/2))); err == nil {
		result, err = p.judge(ctx)
	}
	if err == nil {
		result.Plants, err = p.plants(ctx)
	}
	result.Took = int64(time.Since(began))
	return result, err
}

// run rounds until the end, each fault once if there is time, and then again.
func (p *prover) run(ctx context.Context, end time.Time) (err error) {
	for i := range faults {
		p.shown = append(p.shown, Fault{Name: faults[i].name, Does: cmp.Or(faults[i].skipped(), faults[i].does)})
	}
	p.rounds = []*round{{Fault: &Fault{Name: "no fault yet"}}} // in which the processes start
	defer func() { err = cmp.Or(err, p.stop()) }()
	for i := range processes {
		c, err := p.start(ctx, i)
		if err != nil {
			return err
		}
		p.children = append(p.children, c)
	}
	if err := p.await(ctx, p.rounds[0]); err != nil {
		return err
	}
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
			if err := p.round(ctx, f, &p.shown[i], time.Now().Add(length)); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
}

// round is quiet at first, then comes the fault, then the time to recover, and quiet again.
func (p *prover) round(ctx context.Context, f *fault, shown *Fault, end time.Time) error {
	r := &round{Fault: shown, number: len(p.rounds)}
	p.rounds = append(p.rounds, r)
	p.Say(fmt.Sprintf("round %d: %s, %s", r.number, f.name, f.does))
	p.tell("phase", 2*r.number)
	pass(ctx, p.short())
	r.from = time.Now().UnixNano()
	if err := f.inject(ctx, p); err != nil {
		return err
	}
	if err := p.await(ctx, r); ctx.Err() == nil && err != nil {
		p.find(r, err.Error())
	}
	p.tell("phase", 2*r.number+1)
	pass(ctx, max(p.short(), time.Until(end)))
	return ctx.Err()
}

// find something that breaks a promise.
func (p *prover) find(r *round, what string) {
	p.findings = append(p.findings, fmt.Sprintf("round %d, %s: %s", r.number, r.Name, what))
}

// await a grant of Postgres's to each process, now that the fault is over.
func (p *prover) await(ctx context.Context, r *round) error {
	r.to = time.Now().UnixNano()
	for deadline := time.Now().Add(recoverWithin); time.Now().Before(deadline) && ctx.Err() == nil; pass(ctx, 10*time.Millisecond) {
		p.mu.Lock()
		waits := slices.ContainsFunc(p.children, func(c *child) bool { return c.granted <= r.to })
		p.mu.Unlock()
		if !waits {
			r.back = time.Now().UnixNano() - r.to
			return nil
		}
	}
	return cmp.Or(ctx.Err(), fmt.Errorf("%v later Postgres has granted nothing to a process yet", recoverWithin))
}

// short is a time drawn from the seed.
func (p *prover) short() time.Duration {
	return 300*time.Millisecond + time.Duration(p.random.Int64N(int64(400*time.Millisecond)))
}

// child is a worker process, whose output is written to it.
type child struct {
	*prover
	id    int
	cmd   *exec.Cmd
	stdin io.WriteCloser

	text    []byte // the beginning of a line
	granted int64  // when it asked for what Postgres granted it last
}

// tell all processes. One may have been killed.
func (p *prover) tell(verb string, n int) {
	for _, c := range p.children {
		_, _ = fmt.Fprintln(c.stdin, verb, n)
	}
}

func (p *prover) start(ctx context.Context, id int) (*child, error) {
	text, err := json.Marshal(task{
		URL:    strings.Replace(p.server.URL(database), p.proxy.server, p.proxy.Addr().String(), 1) + workerOptions,
		Worker: id, Seed: p.random.Uint64(), Round: len(p.rounds) - 1, Timeout: p.timeout,
	})
	if err != nil {
		return nil, err
	}
	c := &child{prover: p, id: id, cmd: exec.CommandContext(ctx, p.Worker[0], p.Worker[1:]...)}
	c.cmd.Stdout, c.cmd.Stderr = c, os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = c.cmd.Start(); err == nil {
		_, err = fmt.Fprintf(c.stdin, "%s\n", text)
	}
	return c, err
}

// Write what the process tells. It may be killed in a line.
func (c *child) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, text...)
	for {
		told, rest, whole := bytes.Cut(c.text, []byte("\n"))
		if !whole {
			return len(text), nil
		}
		var l line
		if err := json.Unmarshal(told, &l); err != nil {
			return 0, err
		}
		c.told[l.Call], c.text = l, rest
		if l.Granted > 0 && l.Limiter != "leased" {
			c.granted = max(c.granted, l.Began)
		}
	}
}

// stop the processes, which finish what they have begun.
func (p *prover) stop() (err error) {
	for _, c := range p.children {
		_ = c.stdin.Close()
	}
	for _, c := range p.children {
		err = errors.Join(err, c.cmd.Wait())
	}
	return err
}

// judge all rounds.
func (p *prover) judge(ctx context.Context) (Result, error) {
	result := Result{Seed: p.Seed, Server: p.server.Describe(), Places: places, Faults: p.shown}
	var owed map[string]int64
	err := p.server.do(ctx, database, func(conn *pgx.Conn) error {
		const read = "select coalesce(jsonb_object_agg(key, tokens_owed), '{}') from pglimit.buckets where limiter = 'counter'"
		return conn.QueryRow(ctx, read).Scan(&owed)
	})
	if err != nil {
		return result, err
	}
	var permits []line
	for _, l := range p.told {
		if r := p.rounds[l.Round]; l.Permit == 0 {
			r.lines = append(r.lines, l)
		} else if !r.steps() { // else its time is not the server's
			permits = append(permits, l)
		}
	}
	for _, r := range p.rounds {
		if err := p.judgeRound(r, &result, owed[fmt.Sprintf("%d:n", r.number)]); err != nil {
			return result, err
		}
	}
	result.Permits, result.Most, result.Findings = len(permits), mostPermits(permits), p.findings
	if result.Most > places {
		result.Findings = append(result.Findings, fmt.Sprintf("permits: %d of %d places were held at once", result.Most, places))
	}
	return result, nil
}
