package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// Each strategy decides random histories as the model does, to the microsecond of the clock: takes, peeks,
// several buckets in one call, refunds, resets, leases, changes of the limit, steps of the
// clock and sweeps. The clock is the test's.
//
// A history that fails is one of its own: -run 'TestReplay/upsert/7'. PGLIMIT_TEST_HISTORIES
// says how many there are, of 1,000 operations each.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, strategy := range strategies.All() {
		if strategy.Rule() != (strategies.TokenBucket{}).Rule() {
			continue // TestReplayOfWindows
		}
		t.Run(strategy.Name(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
			execute(t, pool, replayClock)
			for seed := range replayHistories() {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					newReplay(t, pool, strategy, seed).run(1000)
				})
			}
		})
	}
}

// replayHistories is how many histories a test replays.
func replayHistories() int {
	if more, err := strconv.Atoi(os.Getenv("PGLIMIT_TEST_HISTORIES")); err == nil {
		return more
	}
	return 4 // of each kind: see newReplay
}

// replay is one history: some keys, some limits that each of them may have at any time.
type replay struct {
	*testing.T
	*rand.Rand
	pool     *pgxpool.Pool
	strategy strategies.Strategy
	limiter  string
	limits   []pglimit.Limit
	keys     []*replayedKey
	key      *replayedKey // whose turn it is
	ttls     []time.Duration
	now      int64
	set      int64 // what the database's clock was set to last
	log      []string
}

type replayedKey struct {
	name   string
	bucket replayed
	limit  pglimit.Limit // most callers have this one
	grants []pglimit.Refund
	leases []heldLease
	due    []int64 // when something may change: a token is there, the bucket is full, a lease ends
}

type heldLease struct {
	pglimit.Lease
	limit pglimit.Limit
}

// replayed is the model of a bucket.
type replayed interface {
	TakeAhead(now int64, l model.Limit, want, unit, ahead int64) (granted, delay int64)
	Report(now int64, l model.Limit, unit int64) model.Report
	Refund(now int64, l model.Limit, n, grantedAt, delay int64)
	Reset()
}

func newReplay(t *testing.T, pool *pgxpool.Pool, strategy strategies.Strategy, seed int) *replay {
	p := &replay{
		T: t, Rand: rand.New(rand.NewPCG(uint64(seed), 17)),
		pool: pool, strategy: strategy, limiter: fmt.Sprintf("replay %d", seed),
		now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano(),
	}
	// Rates that divide evenly and rates that do not; bursts of one among them.
	tokens, bursts := []int64{1, 3, 7, 10, 100, 997, 1_000_000}, []int64{1, 2, 10, 1000}
	periods := []time.Duration{time.Millisecond, time.Second, 1300 * time.Millisecond, time.Minute, 24 * time.Hour}
	if seed%4 == 3 { // what one limit leaves is more than another can count
		tokens, bursts = append(tokens, pglimit.MaxRate), append(bursts, pglimit.MaxRate, pglimit.MaxRate)
		periods = append(periods, 1000*24*time.Hour)
	}
	for len(p.limits) < 4 {
		l := pglimit.Limit{Tokens: oneOf(p, tokens), Period: oneOf(p, periods), Burst: oneOf(p, bursts)}
		if len(p.limits) == 3 { // the price of another one, and another burst
			l.Tokens, l.Period = p.limits[0].Tokens, p.limits[0].Period
		}
		if strategy.Check(&rate.Request{Limit: l}) != nil {
			l.Burst = 1
		}
		if l.Validate() == nil {
			p.limits = append(p.limits, l)
		}
	}
	for range 2 {
		p.ttls = append(p.ttls, oneOf(p, []time.Duration{time.Millisecond, 150 * time.Millisecond, 3 * time.Second, time.Hour}))
	}
	for _, name := range []string{"a", "b", "c", "d", "é"} {
		k := &replayedKey{name: name, bucket: new(model.Bucket), limit: p.limits[0]}
		if strategy.Name() == "exclusion_range" {
			k.bucket = new(model.Ranges)
		}
		p.keys = append(p.keys, k)
	}
	return p
}

func oneOf[T any](p *replay, from []T) T { return from[p.IntN(len(from))] }

func (p *replay) run(operations int) {
	for done := 0; done < operations; {
		p.key = oneOf(p, p.keys)
		p.pass()
		done += p.operation()
		if p.IntN(3) == 0 {
			p.dated(p.key)
		}
	}
}

// dated compares when the row was last written, of which a decision shows little.
func (p *replay) dated(k *replayedKey) {
	p.Helper()
	row, is := k.bucket.(*model.Bucket)
	if !is || !row.Exists {
		return
	}
	at := query[int64](p.T, p.pool, "select at_ns from pglimit."+p.strategy.Name()+" where limiter = $1 and key = $2", p.limiter, k.name)
	if at != row.At {
		p.fail(k, "the row is dated %v", time.Unix(0, at).UTC())
	}
}

// operation does something, and returns how many requests that was.
func (p *replay) operation() int {
	k, what := p.key, p.IntN(100)
	leaser, leases := p.strategy.(pglimit.Leaser)
	pauser, pauses := p.strategy.(pglimit.Pauser)
	switch {
	case what < 15:
		return p.takeSeveral()
	case what < 22:
		p.peek(k)
	case what < 30:
		p.giveBack()
	case what < 32:
		p.reset(k)
	case what < 33:
		p.sweep()
	case what < 35:
		k.limit = oneOf(p, p.limits)
	case what < 38 && pauses:
		p.pause(pauser, k)
	case what < 50 && leases:
		p.lease(leaser, k)
	default:
		p.takeOne(k)
	}
	return 1
}

// pass lets time pass, often none, or so much that something is just due; or the clock
// steps.
func (p *replay) pass() {
	token := min(modelled(oneOf(p, p.limits)).Token, int64(48*time.Hour)) // or it would soon be 2200
	switch p.IntN(14) {
	case 0:
		p.now += token
	case 1:
		p.now += p.Int64N(token)
	case 2:
		p.now += p.Int64N(20 * token)
	case 3:
		p.now += oneOf(p, []int64{1, 1000, 999_999, 1_000_000, int64(time.Second)})
	case 4:
		if p.IntN(3) == 0 {
			by := oneOf(p, []int64{1, 1000, model.Step / 2, model.Step, model.Step + 1, int64(time.Second), int64(30 * time.Second), int64(24 * time.Hour)})
			p.now += oneOf(p, []int64{by, -by, -by})
			p.note("the clock steps")
		}
	case 7:
		if p.IntN(3) == 0 { // by less than counts as a step
			p.now -= p.Int64N(model.Step)
			p.note("the clock steps a little")
		}
	case 5, 6:
		if len(p.key.due) == 0 {
			return
		}
		at := oneOf(p, p.key.due) - p.Int64N(2) // just when it is due, or just not
		if at > p.now && at-p.now < int64(48*time.Hour) {
			p.now = at
		}
		p.key.due = nil
	}
}

// at sets the database's clock.
func (p *replay) at() {
	p.Helper()
	p.now -= p.now % int64(time.Microsecond) // which is what the clock shows
	if p.set == p.now {
		return
	}
	p.set = p.now
	clockIs(p.T, p.pool, p.now)
}

func (p *replay) note(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf("%s  ", time.Unix(0, p.now).UTC().Format("02 15:04:05.000000000"))+fmt.Sprintf(format, args...))
}

// fail shows what led to it: the last that happened to the key.
func (p *replay) fail(k *replayedKey, format string, args ...any) {
	p.Helper()
	mark := fmt.Sprintf("key %s", k.name)
	var last []string
	for _, line := range slices.Backward(p.log) {
		if len(last) < 12 && (strings.Contains(line, mark) || strings.Contains(line, "clock")) {
			last = append(last, line)
		}
	}
	slices.Reverse(last)
	p.Fatalf("%s: %s\nthe model: %+v\n%s", mark, fmt.Sprintf(format, args...), k.bucket, strings.Join(last, "\n"))
}

// limitOf a request: mostly the key's own, sometimes another's.
func (p *replay) limitOf(k *replayedKey) pglimit.Limit {
	if p.IntN(8) == 0 {
		return oneOf(p, p.limits)
	}
	return k.limit
}

func modelled(l pglimit.Limit) model.Limit { return model.NewLimit(l.Tokens, l.Period, l.Burst) }

func (p *replay) request(k *replayedKey, l pglimit.Limit) rate.Request {
	r := rate.Request{Limiter: p.limiter, Key: k.name, Limit: l}
	r.Tokens = min(l.Burst, oneOf(p, []int64{1, 1, 1, 2, 3, max(1, l.Burst/3), l.Burst}))
	r.Unit = r.Tokens
	if p.IntN(4) == 0 { // as much as there is
		r.Tokens = r.Unit * oneOf(p, []int64{1, 2, 7, 1 << 32})
	}
	if p.strategy.Check(&rate.Request{Limit: pglimit.Every(time.Second), Ahead: 1}) == nil && p.IntN(3) == 0 {
		const day = 24 * time.Hour
		token := l.Token()
		r.Ahead = min(oneOf(p, []time.Duration{1, token - 1, token, token + 1, 5 * min(token, day), l.Window(), 3 * min(l.Window(), day)}), 2*day)
	}
	return r
}
