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

// blockedLimits are for histories of IDs and blocks: most requests are denied.
var blockedLimits = []pglimit.Limit{pglimit.Every(20 * time.Minute).WithBurst(5), hours.WithBurst(3)}

// calendarReplay is a history in which Postgres must decide as Memory does, whose windows Go computes: takes, groups,
// refunds, IDs and blocks. The clock is the test's, and often stands where something ends, or a microsecond beside it.
type calendarReplay struct {
	*testing.T
	*rand.Rand
	session rate.Session
	memory  *pglimittest.Strategy
	now     time.Time
	latest  time.Time // that was now
	forward bool      // the clock does not step back
	blocks  bool      // it is about IDs and blocks
	limits  []pglimit.Limit
	grants  []pglimit.Refund
	due     []time.Time // when a span of denials, a block, or the time of an ID ends
	log     []string
}

func TestReplayOfCalendarWindows(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	for seed := range uint64(4 * replayHistories()) {
		limits := slices.Clone(calendarLimits)
		plain := seed%4 == 1
		switch seed % 4 {
		case 0: // no bucket
			limits = limits[:len(limits)-1]
		case 1: // one window, for the plain counter
			limits = limits[seed/4%7:][:1]
		case 2:
			limits = blockedLimits
		}
		r := &calendarReplay{T: t, Rand: rand.New(rand.NewPCG(seed, 26)), session: on(pool), limits: limits, forward: plain || seed/4%2 == 0, blocks: seed%4 == 2,
			now: []time.Time{
				time.Date(2018, time.November, 3, 20, 0, 0, 0, time.UTC), time.Date(2026, time.October, 24, 20, 0, 0, 0, time.UTC),
				time.Date(2026, time.April, 4, 10, 0, 0, 0, time.UTC), time.Date(2027, time.December, 30, 0, 0, 0, 0, time.UTC),
			}[seed/4%4]}
		r.memory = pglimittest.MemoryOn(func() time.Time { return r.now })
		execute(t, pool, "truncate pglimit.token_bucket, pglimit.token_bucket_answers, pglimit.token_bucket_blocks")
		granted := make(map[string]int64)
		operations := 150
		if r.blocks {
			operations = 800
		}
		for range operations {
			if r.pass(); r.now.Year() > 2057 { // Memory's clock ends
				break
			}
			clockIs(t, pool, r.now.UnixNano())
			r.operation(plain, granted)
		}
	}
}

// pass some time, from none to months, mostly to the end of a window; sometimes back.
func (r *calendarReplay) pass() {
	what := r.IntN(12)
	if r.blocks && what != 4 && r.IntN(3) > 0 {
		what = 8
	}
	switch by := time.Duration(r.Int64N(int64(time.Hour))).Truncate(time.Microsecond); what {
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
		if !r.forward {
			r.now = r.now.Add(-time.Duration(r.Int64N(int64(by) + 1)).Truncate(time.Microsecond)) // or by more than a day
			if r.IntN(4) == 0 {
				r.now = r.now.Add(-time.Duration(r.IntN(40*24)) * time.Hour)
			}
		}
	case 5, 6, 7:
		r.now = r.now.Add(by)
	}
	if r.now = r.now.UTC(); r.now.After(r.latest) {
		r.latest = r.now
	}
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
	kind := r.IntN(10)
	if r.blocks {
		kind = []int{0, 2, 2, 3, 3, 3, 3, 3, 7, 9}[kind]
	}
	switch {
	case kind == 0:
		first.Tokens = 0
		if !plain && r.IntN(2) == 0 {
			first.Block = &rate.Block{After: 1, Within: time.Hour, For: time.Hour, Max: time.Hour}
			defer r.inSQL(first)
		}
	case kind == 9 && r.forward && r.IntN(4) == 0: // what means nothing any more
		_, err := strategies.TokenBucket{}.Sweep(r.Context(), r.session, 0, 1_000_000)
		must(r.T, err)
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
	for i := range min(len(got), len(want)) {
		want[i].HasRow = want[i].ResetAfter > 0 || got[i].HasRow // a full bucket may have one
	}
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

// inSQL asks what a peek has just been told. A key that is blocked is blocked there too, and a request for it changes
// nothing.
func (r *calendarReplay) inSQL(peek *rate.Request) {
	r.Helper()
	want, err := r.memory.Take(r.Context(), nil, []rate.Request{*peek})
	must(r.T, err)
	calls := []string{"pglimit.peek('test', $1, $2, $3)"}
	if want[0].Blocked && !r.now.Before(r.latest) { // behind a step, it would be the first that sees it
		calls = append(calls, "pglimit.allow('test', $1, $2, $3)")
	}
	for _, call := range calls {
		got, err := askSQL(r.Context(), r.session, call, peek.Key, peek.Limit.String(), peek.Unit)
		if d := want[0]; err != nil || got.Allowed != d.Allowed || got.RetryAfter != d.RetryAfter || got.Remaining != d.Remaining {
			r.Fatalf("%v\n%s: %+v, %v, want %+v", r.log[max(0, len(r.log)-8):], call, got, err, d)
		}
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
