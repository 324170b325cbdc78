// Package top counts which keys are denied and granted most.
package top

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	// writeEvery is the time between two statements of a process. After an error it is slotTime: a right that is
	// missing does not come by itself.
	writeEvery = 5 * time.Second

	// slotTime is how long a process counts into the same row of a limiter. The view pglimit.top is as exact as that.
	slotTime = time.Minute

	writeTimeout = 2 * time.Second

	// limiters that a process counts in a slot.
	limiters = 256

	// sample is how many answers without Postgres stand behind one that is counted: these take some 150 ns.
	sample = 64

	// minHashKeys is the length of a secret that cannot be guessed.
	minHashKeys = 16
)

var (
	//go:embed write.sql
	writeSQL string
	//go:embed read.sql
	readSQL string
)

// Config of a [Top]: see TopConfig of package pglimit.
type Config struct {
	HashKeys []byte
	Logger   *slog.Logger
}

// Top counts for all Limiters of a process that use it, and writes the numbers in the background. A nil Top counts
// nothing.
type Top struct {
	session rate.Session
	config  Config

	mu       sync.Mutex
	slot     string
	began    time.Time           // the slot
	limiters map[string]*limiter // of the slot
	users    map[*User]bool
	stop     context.CancelFunc
	stopped  chan struct{}

	writing sync.Mutex // a later write must not be overtaken
	failing atomic.Bool
}

// Totals are numbers of requests: Denied, Granted and Failed.
type Totals [3]int64

// The numbers of [Totals].
const (
	Denied = iota
	Granted
	Failed
)

// limiter is what a slot has of one.
type limiter struct {
	keys   [Granted + 1]sketch
	totals Totals
}

// User counts the answers of one Limiter. A nil User counts nothing.
type User struct {
	top      *Top
	name     string
	answered func() Totals // by the Limiter, since it began
	others   Totals        // of these, what it answered for limiters of another name
	settled  Totals        // and what the totals of its own name have
}

// New does not connect before somebody enters. A nil session cannot be used.
func New(session rate.Session, config Config) *Top {
	t := &Top{session: session, config: config, users: make(map[*User]bool)}
	t.begin()
	return t
}

// begin a slot.
func (t *Top) begin() {
	t.slot, t.began, t.limiters = rand.Text(), time.Now(), make(map[string]*limiter)
}

// Validate returns why it cannot be used, or nil.
func (t *Top) Validate() error {
	switch {
	case t == nil, t.session == nil:
		return errors.New("has no pool: TopFrom needs one, such as a *pgxpool.Pool")
	case t.config.HashKeys != nil && len(t.config.HashKeys) < minHashKeys:
		return fmt.Errorf("has HashKeys of %d bytes: at least %d are needed, so that nobody can guess them",
			len(t.config.HashKeys), minHashKeys)
	}
	return nil
}

// Count a decision that a caller gets. Peeks, and what a group did not take because of another bucket, do not count.
func (u *User) Count(r *rate.Request, d *rate.Decision) {
	if u == nil || r.Tokens == 0 || d.Allowed && d.Granted == 0 {
		return
	}
	n := int64(1)
	if d.Source != rate.FromDatabase {
		if mathrand.Uint32()%sample != 0 {
			return
		}
		n = sample
	}
	kind := Denied
	if d.Allowed {
		kind = Granted
	}
	u.top.mu.Lock()
	defer u.top.mu.Unlock()
	if of := u.top.limiter(r.Limiter); of != nil {
		of.keys[kind].add(r.Key, n)
	}
}

// Told counts an answer that the Limiter gave for a limiter. Those for its own name it has counted already.
func (u *User) Told(limiter string, kind int) {
	if u == nil || limiter == u.name {
		return
	}
	u.top.mu.Lock()
	defer u.top.mu.Unlock()
	u.others[kind]++
	if of := u.top.limiter(limiter); of != nil {
		of.totals[kind]++
	}
}

// limiter is what the slot has of one, or nil if there are too many.
func (t *Top) limiter(name string) *limiter {
	of := t.limiters[name]
	if of == nil && len(t.limiters) < limiters {
		of = new(limiter)
		t.limiters[strings.Clone(name)] = of
	}
	return of
}

// settle adds what the Limiter has answered for its own name to the totals.
func (u *User) settle() {
	for kind, n := range u.answered() {
		if n -= u.others[kind] + u.settled[kind]; n <= 0 { // what was told just now may be counted a moment later
			continue
		}
		u.settled[kind] += n
		if of := u.top.limiter(u.name); of != nil {
			of.totals[kind] += n
		}
	}
}

// Enter begins to write, for the first of the users. answered says what the Limiter of that name has answered.
func (t *Top) Enter(name string, answered func() Totals) *User {
	if t == nil {
		return nil
	}
	u := &User{top: t, name: name, answered: answered}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users[u] = true; t.stop != nil {
		return u
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop, t.stopped = stop, make(chan struct{})
	go t.run(ctx, t.stopped)
	return u
}

// Leave ends to write with the last of the users, once all is written or ctx has ended.
func (u *User) Leave(ctx context.Context) {
	if u == nil {
		return
	}
	t := u.top
	t.mu.Lock()
	u.settle()
	delete(t.users, u)
	stop, stopped := t.stop, t.stopped
	if len(t.users) > 0 {
		stop = nil
	} else {
		t.stop = nil
	}
	t.mu.Unlock()
	if stop != nil {
		stop()
		<-stopped
		if !t.failing.Load() {
			t.write(ctx)
		}
	}
}

func (t *Top) run(ctx context.Context, stopped chan<- struct{}) {
	defer close(stopped)
	for {
		pause := time.Duration(float64(writeEvery) * (0.8 + 0.2*mathrand.Float64())) // not all processes at once
		if t.failing.Load() {
			pause = slotTime
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		t.write(ctx)
	}
}

func (t *Top) log(ctx context.Context, err error) {
	switch {
	case t.config.Logger == nil:
	case err != nil:
		t.config.Logger.LogAttrs(ctx, slog.LevelWarn,
			"pglimit: the keys that are limited most cannot be written, which is tried again every minute",
			slog.String("error", err.Error()))
	default:
		t.config.Logger.LogAttrs(ctx, slog.LevelInfo, "pglimit: the keys that are limited most are written again")
	}
}

// write what was counted in the slot. If it has lasted for its time, the next one begins, also after an error.
func (t *Top) write(parent context.Context) {
	t.writing.Lock()
	defer t.writing.Unlock()
	slot, rows := t.read()
	if len(rows.names) == 0 {
		return
	}
	if t.config.HashKeys != nil {
		for i, key := range rows.keys {
			rows.keys[i] = t.Shown(key)
		}
	}
	ctx, cancel := context.WithTimeout(parent, writeTimeout)
	defer cancel()
	_, err := t.session.Exec(ctx, writeSQL, slot, rows.limiters, rows.keys, rows.counts[Denied], rows.counts[Granted],
		rows.names, rows.totals[Granted], rows.totals[Denied], rows.totals[Failed], rows.lasted)
	if parent.Err() != nil { // which says nothing of Postgres
		return
	}
	if failed := err != nil; failed != t.failing.Swap(failed) {
		t.log(ctx, postgres.Explain(err))
	}
}

// rows of a slot: a key of a limiter each.
type rows struct {
	limiters, keys []string
	counts         [Granted + 1][]int64

	names  []string // of all limiters
	totals [len(Totals{})][]int64
	lasted int64 // the slot, in ns
}

func (t *Top) read() (slot string, r rows) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot = t.slot
	for user := range t.users {
		user.settle()
	}
	for limiter, of := range t.limiters {
		r.names = append(r.names, limiter)
		for kind, n := range of.totals {
			r.totals[kind] = append(r.totals[kind], n)
		}
		place := make(map[string]int)
		for kind := range of.keys {
			for i := range of.keys[kind].counters {
				c := &of.keys[kind].counters[i]
				at, known := place[c.key]
				if !known {
					at = len(r.keys)
					place[c.key] = at
					r.limiters, r.keys = append(r.limiters, limiter), append(r.keys, c.key)
					r.counts[0], r.counts[1] = append(r.counts[0], 0), append(r.counts[1], 0)
				}
				r.counts[kind][at] = c.atLeast()
			}
		}
	}
	if r.lasted = int64(time.Since(t.began)); r.lasted >= int64(slotTime) {
		t.begin()
	}
	return slot, r
}

// Shown is the key as it is stored: a hash of it, if there is a secret.
func (t *Top) Shown(key string) string {
	if t.config.HashKeys == nil {
		return key
	}
	hash := hmac.New(sha256.New, t.config.HashKeys)
	hash.Write([]byte(key))
	return "hmac:" + hex.EncodeToString(hash.Sum(nil)[:sha256.Size/2])
}

// Query is TopQuery of package pglimit.
type Query struct {
	Limiter string
	Granted bool
	Minutes int
	Limit   int
}

// Key is TopKey of package pglimit.
type Key struct {
	Limiter    string `json:"limiter"`
	Key        string `json:"key"`
	Denied1m   int64  `json:"denied_1m"`
	Denied10m  int64  `json:"denied_10m"`
	Denied60m  int64  `json:"denied_60m"`
	Granted1m  int64  `json:"granted_1m"`
	Granted10m int64  `json:"granted_10m"`
	Granted60m int64  `json:"granted_60m"`
}

const (
	defaultMinutes = 10
	defaultLimit   = 20
)

// Keys is [Read] with its own session.
func (t *Top) Keys(ctx context.Context, q Query) ([]Key, error) { return Read(ctx, t.session, q) }

// Read what all processes have written. The error is a [*rate.RequestError] if the query is not valid.
func Read(ctx context.Context, session rate.Session, q Query) (keys []Key, err error) {
	column := "denied"
	if q.Granted {
		column = "granted"
	}
	switch minutes := cmp.Or(q.Minutes, defaultMinutes); minutes {
	case 1, 10, 60:
		column += fmt.Sprintf("_%dm", minutes)
	default:
		why := fmt.Sprintf("is %d: it must be 1, 10 or 60; 0 means %d", minutes, defaultMinutes)
		return nil, &rate.RequestError{Field: "Minutes", Why: why}
	}
	if q.Limit < 0 {
		why := fmt.Sprintf("is %d: it must not be negative; 0 means %d", q.Limit, defaultLimit)
		return nil, &rate.RequestError{Field: "Limit", Why: why}
	}
	var limiter *string
	if q.Limiter != "" {
		limiter = &q.Limiter
	}
	var answer string
	sql := strings.ReplaceAll(readSQL, "$column", column)
	if err := session.Row(ctx, sql, []any{limiter, int64(cmp.Or(q.Limit, defaultLimit))}, &answer); err != nil {
		return nil, postgres.Explain(err)
	}
	err = json.Unmarshal([]byte(answer), &keys)
	return keys, err
}
