package pglimit_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// rulesOfK are those of the key "k", the strongest first: its own, one for a prefix, one for all keys. One without a
// limit is none.
type rulesOfK [3]pglimit.LimitRule

// holds says which limit holds for the key at a time, and until when.
func (rules *rulesOfK) holds(at int64) (limit pglimit.Limit, until int64) {
	limit, until = pglimit.PerHour(100), math.MaxInt64
	for _, r := range rules {
		expires := r.Expires.UnixNano()
		switch {
		case r.Limit == pglimit.Limit{} || !r.Expires.IsZero() && expires <= at:
			continue
		case !r.Expires.IsZero():
			until = min(until, expires)
		}
		return r.Limit, until
	}
	return limit, until
}

// limitsHeld are the limits of a key, and when they held.
type limitsHeld []audit.Held

// replace what holds at a time by these rules, as of another one. What expires may hold for some time longer.
func (held *limitsHeld) replace(at int64, rules rulesOfK, asOf int64, longer time.Duration) {
	for i := range *held {
		(*held)[i].To = min((*held)[i].To, at)
	}
	for asOf < math.MaxInt64 {
		limit, until := rules.holds(asOf)
		*held = append(*held, audit.Held{Limit: limit, From: asOf, To: until})
		if asOf = until; until < math.MaxInt64 {
			(*held)[len(*held)-1].To += int64(longer)
		}
	}
}

// limitsTable is pglimit.limits.
type limitsTable struct {
	mu      sync.Mutex
	rules   rulesOfK
	version int
	held    limitsHeld
}

func (l *limitsTable) change(i int, limit pglimit.Limit, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	l.rules[i] = pglimit.LimitRule{Key: []string{"k", "", ""}[i], Prefix: []string{"", "k", ""}[i], Limit: limit, Expires: expires}
	now := time.Now().UnixNano()
	l.held.replace(now, l.rules, now, 0)
}

// since is pglimit.limits_since.
func (l *limitsTable) since(known string) (answer string, rules rulesOfK) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seconds := func(t time.Time) string { return fmt.Sprintf("%d.%06d", t.Unix(), t.Nanosecond()/1000) }
	var rows []string
	for i, r := range l.rules {
		expires := "null"
		switch {
		case r.Limit == pglimit.Limit{} || !r.Expires.IsZero() && !r.Expires.After(time.Now()):
			continue
		case !r.Expires.IsZero():
			expires = seconds(r.Expires)
		}
		rows = append(rows, fmt.Sprintf(`{"id": %d, "limiter": "api", "key": %q, "prefix": %q, "action": "enforce", "limit": %q, "note": "n", "expires": %s}`, i, r.Key, r.Prefix, r.Limit, expires))
	}
	stamp := fmt.Sprint(l.version, len(rows))
	answer = fmt.Sprintf(`{"stamp": %q, "now": %s`, stamp, seconds(time.Now()))
	if stamp != known {
		answer += fmt.Sprintf(`, "version": %d, "rules": [%s]`, l.version, strings.Join(rows, ","))
	}
	return answer + "}", l.rules
}

// limitsReader is a process's way to the table: an answer takes up to a second, if it is slow always, and none comes
// while it is down.
type limitsReader struct {
	driver.Conn
	table *limitsTable
	slow  bool
	down  atomic.Bool
	held  limitsHeld // by its last answers
}

func (*limitsReader) Driver() driver.Driver                          { return nil }
func (*limitsReader) Close() error                                   { return nil }
func (r *limitsReader) Connect(context.Context) (driver.Conn, error) { return r, nil }

func (r *limitsReader) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if !strings.Contains(query, "limits_since") { // it says that it lives
		return &row{}, nil
	}
	r.half(ctx)
	if r.down.Load() {
		if rand.IntN(2) == 0 {
			return nil, errors.New("connection refused")
		}
		<-ctx.Done()
	}
	asOf := time.Now().UnixNano()
	answer, rules := r.table.since(args[0].Value.(string)) //nolint:forcetypeassert // the stamp
	if r.half(ctx); ctx.Err() != nil {
		return nil, ctx.Err()
	}
	came := time.Now().UnixNano()
	r.held.replace(came, rules, asOf, 2*time.Second+time.Duration(came-asOf)) // it takes the clock to be as late as the answer
	return &row{text: answer}, nil
}

// half the way.
func (r *limitsReader) half(ctx context.Context) {
	const most = 495 * time.Millisecond
	if !r.slow {
		within(ctx, most)
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(most):
	}
}

// within sleeps for a while, so long at most, and says that ctx has not ended.
func within(ctx context.Context, most time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(rand.Int64N(int64(most)))):
	}
	return ctx.Err() == nil
}

// Rules for a key change at random, and expire, while callers of three processes take, with all stages: in no span of
// time is more granted than the loosest limit grants that held in it or in the two seconds before. If there are
// outages, of the limits that each process read last.
func TestNeverOverTheLoosestOfTheLastTwoSeconds(t *testing.T) {
	t.Parallel()
	for _, outages := range []bool{false, true} {
		t.Run(fmt.Sprintf("outages %t", outages), func(t *testing.T) {
			t.Parallel()
			for late, plays := false, 0; !late; plays++ { // chance has no process hear of a change too late in one play of some hundred
				if t.Failed() || plays == 10 {
					t.Fatalf("it is not seen that processes hear of a change later, in %d plays", plays)
				}
				synctest.Test(t, func(t *testing.T) { late = neverOverTheLoosest(t, outages) })
			}
		})
	}
}

// neverOverTheLoosest says whether more was granted than by the limits of the table at that moment.
func neverOverTheLoosest(t *testing.T, outages bool) (late bool) {
	table, memory := new(limitsTable), pglimittest.MemoryOn(time.Now)
	table.change(2, pglimit.PerSecond(10), time.Time{})
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var work sync.WaitGroup
	var readers [3]limitsReader
	var mu sync.Mutex
	var decisions []pglimit.Decision
	for i := range readers {
		r := &readers[i]
		r.table, r.slow = table, i == 0
		db := sql.OpenDB(r)
		defer db.Close() //nolint:errcheck // there is nothing to close
		limiter := onMemory(t, memory, func(c *pglimit.Config) {
			c.Limits, c.Leases.TTL = pglimit.LimitsFromSQL(db, pglimit.LimitsConfig{}), time.Second
		})
		if _, err := limiter.Allow(t.Context(), "another key"); err != nil { // no outage before the rules are read once
			t.Fatal(err)
		}
		for range 4 {
			work.Go(func() {
				for within(ctx, 100*time.Millisecond) {
					d, err := limiter.Allow(t.Context(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					decisions = append(decisions, d)
					mu.Unlock()
				}
			})
		}
		if outages {
			work.Go(func() {
				for within(ctx, 20*time.Second) {
					r.down.Store(true)
					within(ctx, 10*time.Second)
					r.down.Store(false)
				}
			})
		}
	}
	for within(ctx, 5*time.Second) {
		tokens := []int64{1, 5, 20, 100, 400}[rand.IntN(5)]
		limit, expires := pglimit.PerSecond(tokens).WithBurst(1+rand.Int64N(2*tokens)), time.Time{}
		switch rand.IntN(4) {
		case 0:
			limit = pglimit.Limit{}
		case 1:
			expires = time.Now().Add(time.Duration(rand.Int64N(int64(5 * time.Second)))).Truncate(time.Microsecond)
		}
		table.change(rand.IntN(3), limit, expires)
	}
	work.Wait()

	held := table.held
	var history audit.History
	for _, d := range decisions {
		history.Add(audit.Event{At: d.At.UnixNano(), Granted: d.Granted})
	}
	late = history.CheckHeld(held...).Tokens > 0
	if outages {
		held = nil
		for i := range readers {
			held = append(held, readers[i].held...)
		}
	} else {
		for i := range held {
			held[i].To += min(int64(2*time.Second), math.MaxInt64-held[i].To)
		}
	}
	if over := history.CheckHeld(held...); over.Tokens > 0 {
		t.Error(over)
	}
	for _, d := range decisions {
		if !slices.ContainsFunc(held, func(h audit.Held) bool {
			return h.Limit == d.Limit && h.From <= d.At.UnixNano() && d.At.UnixNano() <= h.To
		}) {
			t.Fatalf("%v is not a limit that holds: %+v", d.Limit, d)
		}
	}
	t.Logf("%d decisions by %d limits", len(decisions), len(held))
	return late
}
