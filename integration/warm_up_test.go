package integration

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Those who wait in a row wait as long as with Guava's SmoothWarmingUp. The clock is the test's.
func TestWarmUpWaitsAsGuavaDoes(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	factor3, factor10 := strategies.WarmUp{Period: 4 * time.Second, ColdFactor: 3}, strategies.WarmUp{Period: 4 * time.Second, ColdFactor: 10}
	cold := []float64{0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5}
	type run struct {
		limit pglimit.Limit
		idle  float64 // seconds before the first
		waits []float64
	}
	for name, test := range map[string]struct {
		strategy strategies.WarmUp
		runs     []run
	}{
		"factor 3":         {factor3, []run{{pglimit.PerSecond(2), 0, cold}, {pglimit.PerSecond(2), 4.5, cold}}},
		"a burst of one":   {factor3, []run{{pglimit.Every(500 * time.Millisecond), 0, cold}, {pglimit.Every(500 * time.Millisecond), 4.5, cold}}},
		"half idle":        {factor3, []run{{pglimit.PerSecond(2), 0, append(cold, 0.5)}, {pglimit.PerSecond(2), 0.5, []float64{0, 0.5}}, {pglimit.PerSecond(2), 2.5, []float64{0, 0.5, 0.5}}}},
		"factor 10":        {factor10, []run{{pglimit.PerSecond(5), 0, []float64{0, 1.752, 1.258, 0.762, 0.300, 0.2}}, {pglimit.PerSecond(5), 4.2, []float64{0, 1.752, 1.258, 0.762, 0.300, 0.2}}}},
		"changed midway":   {factor3, []run{{pglimit.PerSecond(2), 0, cold[:3]}, {pglimit.PerSecond(4), 0, []float64{0.875, 0.344, 0.281, 0.25, 0.25}}}},
		"slowed midway":    {factor3, []run{{pglimit.PerSecond(4), 0, []float64{0, 0.719, 0.656, 0.594}}, {pglimit.PerSecond(2), 0, []float64{0.531, 0.875, 0.625, 0.5}}}},
		"never any dearer": {strategies.WarmUp{Period: 4 * time.Second, ColdFactor: 1}, []run{{pglimit.PerSecond(2), 0, []float64{0, 0.5, 0.5}}}},
	} {
		now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()
		for r, run := range test.runs {
			now += int64(run.idle * 1e9)
			for i, want := range run.waits {
				clockIs(t, pool, now)
				d := takeAll(t, pool, test.strategy, rate.Request{Limiter: "test", Key: name, Limit: run.limit, Tokens: 1, Unit: 1, Ahead: time.Minute})[0]
				if !d.Allowed || math.Abs(d.Delay.Seconds()-want) > 0.0006 {
					t.Errorf("%s, run %d, request %d: %+v, want a delay of %v s", name, r, i, d, want)
				}
				now += int64(d.Delay) // the caller waits
				now += -now % -1000
			}
		}
	}
}

// warmUpModel is a key, with the permits that it has stored as a share of all.
type warmUpModel struct {
	free, due int64
	tokens    int64
	full      int64 // when it is cold
	period    int64
	at        int64 // of the last write
}

// stepped is the key when the clock shows now.
func (m warmUpModel) stepped(now int64) warmUpModel {
	if back := m.at - now; back > 10_000_000 {
		m.free, m.due, m.full, m.at = m.free-back, m.due-back, m.full-back, now
	}
	return m
}

func (m *warmUpModel) take(s strategies.WarmUp, now int64, r *rate.Request) (d pglimit.Decision) {
	*m = m.stepped(now)
	now = max(now, m.at)
	wait, token := max(0, m.free-now), int64(r.Limit.Token())
	if wait > int64(r.Ahead) {
		return m.tell(now, r, d)
	}
	atOnce := r.Unit
	if wait == 0 {
		atOnce = r.Limit.Burst
	}
	d.Granted = min(r.Tokens, atOnce+(int64(r.Ahead)-wait)/token) / r.Unit * r.Unit
	d.Delay = time.Duration(wait + max(0, d.Granted-atOnce)*token)

	stable, cold := float64(token), float64(token)*s.ColdFactor
	threshold := float64(s.Period) / (2 * stable)
	most := threshold + 2*float64(s.Period)/(stable+cold)
	missing := 0.0
	if m.period > 0 {
		missing = min(1, float64(max(0, m.full-now-wait))/float64(m.period))
	}
	a := max(0, float64(most*(1-missing))-threshold) // above the threshold
	k := min(float64(d.Granted), a)
	extra := math.Ceil(k * (a + (a - k)) * ((cold - stable) / (2 * float64(s.Period) / (stable + cold))) / 2)
	m.at, m.due, m.tokens, m.period = now, now+wait, d.Granted, int64(s.Period)
	m.free = m.due + d.Granted*token + int64(extra)
	m.full = m.free + int64(math.Ceil(float64(s.Period)*min(1, missing+float64(d.Granted)/most)))
	return m.tell(now, r, d)
}

func (m warmUpModel) tell(now int64, r *rate.Request, d pglimit.Decision) pglimit.Decision {
	d.At = time.Unix(0, now).UTC()
	if d.RetryAfter = time.Duration((max(0, m.free-now) + 999) / 1000 * 1000); d.RetryAfter == 0 {
		d.Remaining = r.Limit.Burst
	}
	d.ResetAfter = d.RetryAfter
	d.Allowed = d.Granted > 0 || r.Tokens == 0 && d.Remaining >= r.Unit
	return d
}

func (m *warmUpModel) giveBack(r pglimit.Refund) {
	due, token := r.At.UnixNano()+int64(r.Delay), int64(r.Limit.Token())
	var back int64
	switch last := m.at == r.At.UnixNano() && m.due <= due; {
	case due >= m.free:
	case last && r.Tokens >= m.tokens:
		back = m.free - m.due
	case last && (r.Delay == 0 && m.tokens <= r.Limit.Burst || due-m.due >= (m.tokens-r.Tokens)*token):
		back = min(m.free-m.due, r.Tokens*token)
	case m.at >= r.At.UnixNano() && m.tokens == 0 && m.free-due <= r.Tokens*token: // those behind it were given back
		back = m.free - due
	}
	if back > 0 {
		m.tokens = max(0, m.tokens-r.Tokens)
		m.free, m.full = m.free-back, m.full-back
		m.due = min(m.due, m.free)
	}
}

// Random histories are decided as the model decides them: takes, reservations and peeks under limits and Periods that
// change, several of them in one call, refunds, resets, sweeps, and steps of the clock. The clock is the test's.
func TestReplayOfWarmUp(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	random := rand.New(rand.NewPCG(8, 73))
	limits := [][]pglimit.Limit{
		{pglimit.PerSecond(2)},
		{pglimit.PerSecond(5), pglimit.PerSecond(10).WithBurst(4), pglimit.Every(2 * time.Second)},
		{pglimit.Per(997, 1300*time.Millisecond).WithBurst(50), pglimit.PerSecond(pglimit.MaxRate).WithBurst(1000)},
	}
	callers := []strategies.WarmUp{{Period: 4 * time.Second, ColdFactor: 3}, {Period: time.Second, ColdFactor: 10}}
	models, events := make([]warmUpModel, len(limits)), make([][]audit.Event, len(limits))
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()
	var refunds []pglimit.Refund
	granted, stepped, returned := 0, false, 0
	for op := range 2500 {
		key := random.IntN(len(limits))
		m, limit, strategy := &models[key], limits[key][random.IntN(len(limits[key]))], callers[0]
		if key > 0 {
			strategy = callers[random.IntN(len(callers))]
		}
		switch random.IntN(12) {
		case 0, 1, 2:
			now += random.Int64N(int64(limit.Token())+1) / 1000 * 1000
		case 3:
			now += random.Int64N(int64(strategy.Period)) / 1000 * 1000
		case 4, 5, 6: // to when it is free, or just before it
			now = max(now, (m.free+999)/1000*1000-1000*random.Int64N(2))
		case 7:
			if op > 1500 && random.IntN(4) == 0 {
				stepped = true
				now += []int64{-1, 1}[random.IntN(2)] * []int64{5e6, 1e8, 1e9, 6e10}[random.IntN(4)]
			}
		}
		clockIs(t, pool, now)
		r := rate.Request{Limiter: "test", Key: fmt.Sprint(key), Limit: limit, Tokens: 1 + random.Int64N(limit.Burst)}
		r.Unit = r.Tokens
		if random.IntN(3) == 0 {
			r.Unit = 1 + random.Int64N(min(3, r.Tokens))
			r.Tokens *= 1 + random.Int64N(3)
		}
		if random.IntN(3) == 0 {
			r.Ahead = time.Duration(random.Int64N(int64(5 * limit.Window())))
		}
		var requests []rate.Request
		switch random.IntN(10) {
		case 0:
			r.Tokens, r.Ahead = 0, 0
			requests = []rate.Request{r}
		case 1:
			requests = []rate.Request{r, r}
		case 2:
			if random.IntN(3) == 0 {
				must(t, strategy.Reset(t.Context(), on(pool), "test", r.Key))
				*m, events[key] = warmUpModel{}, nil
			}
		case 3:
			_, err := strategy.Sweep(t.Context(), on(pool), 0, 1000)
			must(t, err)
		case 4, 5:
			if len(refunds) > 0 {
				back := refunds[len(refunds)-1-random.IntN(min(3, len(refunds)))]
				back.Tokens = 1 + random.Int64N(back.Tokens)
				must(t, strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{back}))
				var of int
				_, _ = fmt.Sscan(back.Key, &of)
				before := models[of]
				if models[of].giveBack(back); before != models[of] {
					returned++
				}
				charged := min(before.due, back.At.UnixNano()+int64(back.Delay))
				if f := models[of].free; f < charged {
					t.Fatalf("operation %d: free at %d, before %d, when it was charged", op, f, charged)
				}
				events[of] = nil
			}
		default:
			requests = []rate.Request{r}
		}
		if len(requests) == 0 {
			continue
		}
		for i, got := range takeAll(t, pool, strategy, requests...) {
			r, before := requests[i], *m
			var want pglimit.Decision
			if r.Tokens == 0 {
				is := m.stepped(now)
				want = is.tell(max(now, is.at), &r, want)
			} else {
				want = m.take(strategy, now, &r)
			}
			want.HasRow = want.ResetAfter > 0 || got.HasRow // a full bucket may have one
			if got != want {
				t.Fatalf("operation %d, key %d, %+v, %+v:\n got %+v\nwant %+v\nof %+v", op, key, strategy, r, got, want, before)
			}
			if got.Granted > 0 {
				granted++
				back := pglimit.Refund{Request: r, At: got.At, Delay: got.Delay}
				back.Tokens, back.Unit, back.Ahead = got.Granted, 1, 0
				refunds = append(refunds, back)
			}
			// By when each is due, never over.
			for left := got.Granted; left > 0; left -= r.Unit {
				due := max(0, got.Delay-time.Duration(left-r.Unit)*limit.Token())
				events[key] = append(events[key], audit.Event{At: got.At.Add(due).UnixNano(), Granted: r.Unit})
			}
			if !stepped && op%20 == 0 { // it counts all from the beginning
				if report := audit.Check(nil, limits[key][0], events[key], limits[key][1:]...); report.Over.Tokens > 0 {
					t.Fatalf("operation %d: %v", op, report)
				}
			}
		}
	}
	if granted < 400 || returned < 20 {
		t.Errorf("%d grants, %d refunds: this says little", granted, returned)
	}
}

// Wait and Reserve of a Limiter: a reservation that is cancelled, and is the last one, costs nothing.
func TestWarmUpReservesInOrder(t *testing.T) {
	t.Parallel()
	pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
	execute(t, pool, replayClock)
	clockIs(t, pool, time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano())
	limiter := newLimiter(t, pool, strategies.WarmUp{Period: 4 * time.Second}, pglimit.Config{Name: "test", Limit: pglimit.PerSecond(2), MaxAhead: time.Minute})
	var last *pglimit.Reservation
	for i, seconds := range []float64{0, 1.375, 2.5, 3.375, 4, 4.5, 5} {
		want := time.Duration(seconds * 1e9)
		var err error
		last, err = limiter.Reserve(t.Context(), "k")
		must(t, err)
		if d := last.Decision(); !last.OK() || d.Delay != want {
			t.Errorf("reservation %d: %+v, want a delay of %v", i, d, want)
		}
	}
	must(t, last.Cancel(t.Context()))
	next, err := limiter.Reserve(t.Context(), "k")
	must(t, err)
	if d := next.Decision(); d.Delay != 5*time.Second {
		t.Errorf("%+v: want the place of the one that was cancelled", d)
	}
	if d := take(t, pool, strategies.WarmUp{Period: 4 * time.Second}, "k", pglimit.PerSecond(2)); d.Allowed || d.RetryAfter != 5500*time.Millisecond {
		t.Errorf("%+v", d)
	}
	// Callers whom one round trip serves are decided as if each had come alone.
	together := func(ask func() pglimit.Decision) (delays []time.Duration) {
		got := make(chan time.Duration, 7)
		for range cap(got) {
			go func() {
				d := ask()
				if !d.Allowed {
					d.Delay = -1
				}
				got <- d.Delay
			}()
		}
		for range cap(got) {
			delays = append(delays, <-got)
		}
		slices.Sort(delays)
		return delays
	}
	want := []time.Duration{0, 1375 * time.Millisecond, 2500 * time.Millisecond, 3375 * time.Millisecond, 4 * time.Second, 4500 * time.Millisecond, 5 * time.Second}
	if got := together(func() pglimit.Decision {
		r, err := limiter.Reserve(t.Context(), "reserved")
		if err != nil {
			t.Error(err)
			return pglimit.Decision{}
		}
		return r.Decision()
	}); !slices.Equal(got, want) {
		t.Errorf("reserved together: %v, want %v", got, want)
	}
	if got := together(func() pglimit.Decision {
		d, err := limiter.Allow(t.Context(), "allowed")
		if err != nil {
			t.Error(err)
		}
		return d
	}); !slices.Equal(got, []time.Duration{-1, -1, -1, -1, -1, -1, 0}) {
		t.Errorf("asked together: %v", got)
	}
	d, err := limiter.Do(t.Context(), pglimit.Request{Key: "settled", Tokens: 2})
	must(t, err)
	if d, err = limiter.Settle(t.Context(), d, 4); err != nil || d.Granted != 4 {
		t.Errorf("%+v, %v: what it took is charged, though a cold key pays long for what it was granted", d, err)
	}
	if got := query[string](t, pool, "select warmth || ' ' || (free_at - last_taken_at) || ' ' || (cold_at - free_at) from pglimit.warm_ups where limiter = 'test' and key = 'k'"); got != "1.000 00:00:05.5 00:00:04" {
		t.Errorf("the view shows %s", got)
	}
}
