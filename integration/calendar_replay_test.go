package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
)

// Limits per calendar window, and a bucket, that a key may have one after another.
var calendarLimits = []pglimit.Limit{
	pglimit.PerMinute(4).Fixed(),
	pglimit.PerHour(5).Fixed(),
	pglimit.PerHour(7).In("Australia/Lord_Howe").WithBurst(6),
	pglimit.PerDay(9).Fixed(),
	pglimit.PerDay(20).In("Asia/Kathmandu"),
	pglimit.Per(30, 7*24*time.Hour).In("Europe/Berlin").FromWeekday(time.Sunday),
	pglimit.PerMonth(40).In("America/Sao_Paulo").From(31),
	pglimit.PerYear(60),
	pglimit.Every(20 * time.Minute).WithBurst(5),
}

// calendarReplay is a history in which Postgres must decide as Memory does, whose windows Go computes. The clock is the
// test's.
type calendarReplay struct {
	*testing.T
	*rand.Rand
	session rate.Session
	memory  *pglimittest.Strategy
	now     time.Time
	limits  []pglimit.Limit
	grants  []pglimit.Refund
	due     []time.Time // when a span of denials, a block, or the time of an ID ends
	log     []string
}

func TestReplayOfCalendarWindows(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	for seed := range uint64(2 * replayHistories()) {
		limits := slices.Clone(calendarLimits)
		switch seed % 4 {
		case 0: // no bucket
			limits = limits[:len(limits)-1]
		case 1: // one window, for the plain counter
			limits = limits[seed/4%7:][:1]
		}
		r := &calendarReplay{T: t, Rand: rand.New(rand.NewPCG(seed, 26)), session: on(pool), limits: limits,
			now: []time.Time{
				time.Date(2018, time.November, 3, 20, 0, 0, 0, time.UTC), time.Date(2026, time.October, 24, 20, 0, 0, 0, time.UTC),
				time.Date(2026, time.April, 4, 10, 0, 0, 0, time.UTC), time.Date(2027, time.December, 30, 0, 0, 0, 0, time.UTC),
			}[seed/4%4]}
		r.memory = pglimittest.MemoryOn(func() time.Time { return r.now })
		execute(t, pool, "truncate pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks")
		granted := make(map[string]int64)
		for range 200 {
			if r.pass(seed%4 == 1); r.now.Year() > 2057 { // Memory's clock ends
				break
			}
			execute(t, pool, "select set_config('pglimit_test.clock_ns', $1::bigint::text, false)", r.now.UnixNano())
			r.operation(seed%4 == 1, granted)
		}
	}
}

// pass some time, from none to months, mostly to the end of a window; sometimes back.
func (r *calendarReplay) pass(forward bool) {
	switch by := time.Duration(r.Int64N(int64(time.Hour))).Truncate(time.Microsecond); r.IntN(12) {
	case 0:
		r.now = r.now.Add(30 * by)
	case 1:
		r.now = r.now.Add(by * 24 * 40)
	case 2, 3:
		if limit := r.limit(); limit.Calendar != "" {
			ends, err := limit.WindowEnd(r.now)
			if err != nil {
				r.Fatal(err)
			}
			r.now = ends.Add(time.Duration(r.IntN(3)-1) * time.Microsecond)
		}
	case 8, 9:
		if len(r.due) > 0 { // just when it is due, or just before or behind that
			i := len(r.due) - 1 - r.IntN(min(4, len(r.due)))
			if at := r.due[i].Add(time.Duration(r.IntN(3)-1) * time.Microsecond); at.After(r.now) {
				r.now = at
			}
		}
	case 4:
		if !forward {
			r.now = r.now.Add(-time.Duration(r.Int64N(int64(by) + 1)).Truncate(time.Microsecond)) // or by more than a day
			if r.IntN(4) == 0 {
				r.now = r.now.Add(-time.Duration(r.IntN(40*24)) * time.Hour)
			}
		}
	case 5, 6, 7:
		r.now = r.now.Add(by)
	}
	r.now = r.now.UTC()
}

func (r *calendarReplay) limit() pglimit.Limit { return r.limits[r.IntN(len(r.limits))] }

func (r *calendarReplay) request() rate.Request {
	limit, n := r.limit(), 1+r.Int64N(3)
	return rate.Request{Limiter: "test", Key: fmt.Sprint("key ", r.IntN(2)), Limit: limit, Tokens: n, Unit: n}
}

func (r *calendarReplay) operation(plain bool, granted map[string]int64) {
	r.Helper()
	requests := []rate.Request{r.request()}
	first := &requests[0]
	switch kind := r.IntN(10); {
	case kind == 0:
		first.Tokens = 0
	case kind == 1:
		first.Tokens, first.Unit = 1+r.Int64N(50), 1
	case plain:
	case kind == 2:
		first.ID, first.IDTTL = fmt.Sprint(r.IntN(3), first.Limit), []time.Duration{time.Minute, time.Hour, 24 * time.Hour}[r.IntN(3)]
		r.due = append(r.due, r.now.Add(first.IDTTL))
	case kind == 3:
		first.Block = &[]rate.Block{
			{After: 2, Within: time.Hour, For: 2 * time.Hour, Max: 3 * time.Hour, Forget: 4 * time.Hour},
			{After: 1, Within: time.Minute, For: time.Second, Max: 3 * time.Second, Forget: time.Minute},
			{After: 3, Within: 10 * time.Second, For: time.Minute, Max: time.Hour},
		}[r.IntN(3)]
		r.due = append(r.due, r.now.Add(first.Block.Within), r.now.Add(first.Block.Forget))
	case kind == 4, kind == 5:
		for range r.IntN(3) {
			next := r.request()
			if next.Key == first.Key {
				next.Limit = first.Limit
				next.Tokens, next.Unit = min(next.Tokens, next.Limit.Burst), min(next.Tokens, next.Limit.Burst)
			}
			if len(requests) == 1 || next.Key == first.Key {
				requests = append(requests, next)
			}
		}
	case kind == 6:
		next := r.request()
		next.Key = "key " + map[string]string{"key 0": "1", "key 1": "0"}[first.Key]
		requests = append(requests, next)
		requests[0].Group, requests[1].Group = 1, 1
	case kind == 7 && len(r.grants) > 0:
		r.giveBack()
		return
	}
	got, err := strategies.TokenBucket{}.Take(r.Context(), r.session, requests)
	want, failed := r.memory.Take(r.Context(), nil, requests)
	r.log = append(r.log, fmt.Sprintf("%v %+v\n\tgot %+v %v", r.now, requests, got, err))
	for i := range min(len(got), len(want)) { // of two requests for one bucket, the first may be told what is there after the second
		if slices.ContainsFunc(requests[i+1:], func(next rate.Request) bool { return next.Key == requests[i].Key }) {
			got[i].RetryAfter, got[i].ResetAfter = want[i].RetryAfter, want[i].ResetAfter
		}
	}
	if (err != nil) != (failed != nil) || !slices.Equal(got, want) {
		r.Fatalf("%v\n\twant %+v %v", r.log[max(0, len(r.log)-8):], want, failed)
	}
	for i := range got {
		d, request := got[i], requests[i]
		if d.BlockedFor > 0 {
			r.due = append(r.due, d.At.Add(d.BlockedFor))
			if request.Block != nil {
				r.due = append(r.due, d.At.Add(d.BlockedFor+request.Block.Forget))
			}
		}
		if d.Granted == 0 || request.ID != "" {
			continue
		}
		if plain {
			ends, _ := request.Limit.WindowEnd(d.At)
			window := request.Key + ends.String()
			if granted[window] += d.Granted; granted[window] > request.Limit.Burst || d.Remaining != request.Limit.Burst-granted[window] || d.ResetAfter != ends.Sub(d.At) {
				r.Fatalf("%d granted in the window that ends %v: %+v", granted[window], ends, d)
			}
		}
		request.Block, request.Group, request.Tokens, request.Unit = nil, 0, d.Granted, 1
		r.grants = append(r.grants, rate.Refund{Request: request, At: d.At, Delay: d.Delay})
	}
}

// giveBack one of the newest grants.
func (r *calendarReplay) giveBack() {
	r.Helper()
	i := len(r.grants) - 1 - r.IntN(min(4, len(r.grants)))
	refund := []pglimit.Refund{r.grants[i]}
	r.grants = slices.Delete(r.grants, i, i+1)
	r.log = append(r.log, fmt.Sprintf("%v gives back %+v", r.now, refund))
	if err := (strategies.TokenBucket{}).GiveBack(r.Context(), r.session, refund); err != nil {
		r.Fatal(err)
	}
	if err := r.memory.GiveBack(r.Context(), nil, refund); err != nil {
		r.Fatal(err)
	}
}
