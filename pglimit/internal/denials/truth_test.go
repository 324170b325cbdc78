package denials_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/strategytest/model"
)

// world is Postgres as the model has it, behind a network, and the memory of a process that asks it.
type world struct {
	*rapid.T
	memory
	limits []rate.Limit
	rows   map[string]*row
	calls  []*call // under way

	start time.Time
	drift int64 // how much faster Postgres's clock runs, in millionths
}

type row struct {
	model.Bucket
	changed time.Time // when somebody took from it last
	known   *call     // the last call that the memory was told of
}

// call is some requests that are decided at one time.
type call struct {
	requests  []rate.Request
	decisions []rate.Decision
	asked     time.Duration // by the memory's clock
	decided   time.Time     // by this process's clock, as the others; zero: not yet
	told      time.Time
}

// now is Postgres's clock, which counts in microseconds.
func (w *world) now() int64 {
	const start = int64(1_790_000_000_000_000_000)
	passed := int64(time.Since(w.start))
	return (start + passed + passed/1_000_000*w.drift) / 1000 * 1000
}

func modelled(l rate.Limit) model.Limit { return model.NewLimit(l.Tokens, l.Period, l.Burst) }

// micros is rounded up, as Postgres tells times.
func micros(d time.Duration) time.Duration { return (d + 999).Truncate(time.Microsecond) }

func (w *world) draw(what string, from ...int64) int64 {
	return rapid.SampledFrom(from).Draw(w.T, what)
}
func (w *world) key() string { return rapid.SampledFrom([]string{"a", "b"}).Draw(w.T, "key") }

// request is a random one: all or nothing, in units, a peek, or one that may wait.
func (w *world) request(key string) rate.Request {
	limit := rapid.SampledFrom(w.limits).Draw(w.T, "limit")
	n := rapid.OneOf(rapid.Int64Range(1, limit.Burst), rapid.Int64Range(1, min(limit.Burst, 3)), rapid.Just(limit.Burst/2+1)).Draw(w.T, "tokens")
	r := rate.Request{Limiter: "test", Key: key, Limit: limit, Tokens: n, Unit: n}
	switch w.draw("kind", 0, 1, 2, 3, 3, 3, 3, 3, 3) {
	case 0:
		r.Tokens = 0
	case 1:
		r.Tokens *= w.draw("units", 1, 2, 3)
	case 2:
		r.Ahead = micros(limit.Window() / time.Duration(w.draw("ahead", 1, 3, 1000)))
	}
	return r
}

// call has one request, or two that stand or fall together.
func (w *world) call() *call {
	c := &call{asked: w.Now(), requests: []rate.Request{w.request("a")}}
	switch w.draw("group", 0, 1, 1, 2, 2) {
	case 0:
		c.requests = append(c.requests, w.request("b"))
		for i := range c.requests {
			c.requests[i].Tokens, c.requests[i].Ahead = c.requests[i].Unit, 0
		}
	case 1:
		c.requests[0].Key = "b"
	}
	w.calls = append(w.calls, c)
	return c
}

// decide a call in Postgres.
func (w *world) decide(c *call) {
	w.apart()
	c.decided = time.Now()
	all := true
	for _, r := range c.requests {
		look := w.rows[r.Key].Bucket
		all = all && look.Take(w.now(), modelled(r.Limit), r.Tokens, r.Unit) > 0
	}
	for _, r := range c.requests {
		if len(c.requests) > 1 && !all {
			r.Tokens = 0
		}
		c.decisions = append(c.decisions, w.take(&r))
	}
}

func (w *world) take(r *rate.Request) rate.Decision {
	row, now, l := w.rows[r.Key], w.now(), modelled(r.Limit)
	granted, delay := row.TakeAhead(now, l, r.Tokens, r.Unit, int64(r.Ahead))
	if granted > 0 {
		row.changed = time.Now()
	}
	told := row.Report(now, l, r.Unit)
	return rate.Decision{
		Allowed: granted > 0 || r.Tokens == 0 && told.RetryAfter == 0, Granted: granted, Remaining: told.Remaining,
		RetryAfter: micros(told.RetryAfter), ResetAfter: micros(told.ResetAfter), Delay: time.Duration(delay), At: time.Unix(0, now).UTC(),
	}
}

// answer the call. After an answer that a later one has overtaken, it is not certain which of them the
// memory knows.
func (w *world) answer(c *call) {
	c.told = time.Now()
	w.Learn(c.requests, c.decisions, c.asked)
	w.calls = slices.DeleteFunc(w.calls, func(other *call) bool { return other == c })
	for _, r := range c.requests {
		row := w.rows[r.Key]
		overtaken := row.known != nil && row.known.decided.After(c.decided)
		if row.known = c; overtaken {
			row.known = nil
		}
	}
}

func (w *world) pause() {
	limit := w.limits[0]
	time.Sleep(time.Duration(w.draw("pause", 0, 0, 1, int64(limit.Token())/3, int64(limit.Token()), int64(limit.Window())/3)))
}

// apart lets some microseconds pass: nobody could tell the order of what Postgres does in the same one.
func (w *world) apart() { time.Sleep(2 * time.Microsecond) }

// step is something that happens.
func (w *world) step() {
	w.pause()
	w.apart()
	key, alone := w.key(), len(w.limits) == 1
	limit, row := w.limits[0], w.rows[key]
	bucket := rate.Bucket{Limiter: "test", Key: key}
	switch what := rapid.IntRange(0, 40).Draw(w.T, "what"); {
	case what < 20:
		c := w.call()
		w.pause()
		w.decide(c)
		w.pause()
		w.answer(c)
	case what < 25 || len(w.calls) == 0:
		w.call()
	case what < 35:
		if c := rapid.SampledFrom(w.calls).Draw(w.T, "call"); c.decided.IsZero() {
			w.decide(c)
		} else {
			w.answer(c)
		}
	case what == 35:
		row.Refund(w.now(), modelled(limit), rapid.Int64Range(1, limit.Burst).Draw(w.T, "refund"), w.now(), 0)
		w.Forget(bucket)
	case what == 36:
		row.Reset()
		w.Forget(bucket)
	case what == 37:
		w.rows["a"].Reset()
		w.rows["b"].Reset()
		w.ForgetAll()
	case what == 38 && alone: // another process
		w.take(&rate.Request{Key: key, Limit: limit, Tokens: 1, Unit: 1})
	case what == 39 && alone: // another process, which takes a lease
		n := rapid.Int64Range(1, limit.Burst).Draw(w.T, "lease")
		row.Lease(w.now(), modelled(limit), model.LeaseRequest{Want: n, Share: 1, TTL: rapid.Int64Range(1, 2*int64(limit.Window())).Draw(w.T, "ttl")})
		row.changed = time.Now()
	}
}

// check what the memory says of a request, and return whether it says anything.
func (w *world) check(r *rate.Request) bool {
	row, now, l := w.rows[r.Key], w.now(), modelled(r.Limit)
	d, known := w.Recall(r)
	upToDate := row.known != nil && !row.known.decided.Before(row.changed)
	if !known || len(w.limits) > 1 && !upToDate { // what is taken under another limit may come back faster
		return false
	}
	// Two microseconds earlier: Postgres's clock counts in them, and it tells times rounded up to them.
	copied := row.Bucket
	if granted, _ := copied.TakeAhead(now-2000, l, r.Tokens, r.Unit, int64(r.Ahead)); granted > 0 || r.Tokens == 0 {
		w.Fatalf("%+v is denied, and would be granted %d: %+v", r, granted, d)
	}
	if d.Allowed || d.Granted != 0 || d.Delay != 0 || d.RetryAfter <= 0 || d.Source != rate.FromMemory || d.Limit != r.Limit || d.Remaining >= r.Unit {
		w.Fatalf("no denial from memory: %+v", d)
	}
	if !upToDate || len(w.limits) > 1 {
		return true
	}
	// The memory supposes that the answer was decided when it came, and that Postgres's clock is slower.
	late := row.known.told.Sub(row.known.decided) + time.Since(row.known.decided)/500 + 2*time.Microsecond
	want, seen := row.Report(now, l, r.Unit), row.Seen(now, l)
	leased := time.Duration(0)
	if seen.Leased > 0 { // of leases, less than a token is not seen: see bucket.Rule.Denies
		leased = r.Limit.Token()
	}
	near := func(got, want, off time.Duration) bool {
		return got >= want-off-2*time.Microsecond && got <= want+off+late
	}
	if !near(d.RetryAfter, want.RetryAfter, leased) || !near(d.ResetAfter, want.ResetAfter, 0) {
		w.Fatalf("%+v: %+v\nwant %+v, to %v later\nrow %+v", r, d, want, late, row.Bucket)
	}
	least, most := seen.Left(now-int64(late), l), seen.Left(now+2000, l)
	if leased > 0 { // an answer does not say how many can come back before the leases end
		of := slices.IndexFunc(row.known.requests, func(known rate.Request) bool { return known.Key == r.Key })
		least = min(least, row.known.decisions[of].Remaining)
	}
	if d.Remaining > most || d.Remaining < min(least, r.Unit-1) {
		w.Fatalf("%+v: %+v\nwant %d to %d remaining\nrow %+v", r, d, least, most, row.Bucket)
	}
	return true
}

// Whatever is taken, and in whatever order the answers come: the memory denies only what Postgres
// would deny at that moment, and tells what it would tell.
func TestTheMemoryTellsWhatPostgresWould(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		known, histories := 0, 0
		noDeadline := struct{ testing.TB }{t} // a bubble has none
		rapid.Check(noDeadline, func(rt *rapid.T) {
			histories++
			w := &world{T: rt, memory: remembering(t), rows: map[string]*row{"a": {}, "b": {}}, start: time.Now()}
			token := w.draw("token", 1, 7, 333, 1000, 333_333_334, 1e6, 1e8, 1e9)
			limit := rate.Every(time.Duration(token)).WithBurst(w.draw("burst", 1, 2, 10, 1000))
			w.limits = []rate.Limit{limit}
			if w.draw("limits", 1, 1, 2) == 2 {
				w.limits = append(w.limits, rate.Every(time.Duration(token+token/w.draw("slower by", 1, 3, 100))).WithBurst(limit.Burst+1))
			}
			w.drift = w.draw("drift", -450, 0, 450)
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				w.step()
				for range 3 {
					if r := w.request(w.key()); w.check(&r) {
						known++
					}
				}
			}
		})
		if known < histories { // -short has fewer
			t.Errorf("only %d were known in %d histories", known, histories)
		}
	})
}
