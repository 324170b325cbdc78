package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// windowStrategies never grant more than a burst in any window. Each row has those of the callers of one key.
func windowStrategies() [][]strategies.Strategy {
	const interval = 300 * time.Millisecond
	return [][]strategies.Strategy{
		{strategies.SlidingWindow{}}, {strategies.SlidingWindow{Cells: 1}}, {strategies.SlidingWindow{Cells: 60}},
		{strategies.SlidingWindow{Cells: 1}, strategies.SlidingWindow{Cells: 6}, strategies.SlidingWindow{Cells: 100}},
		{strategies.SlidingLog{}}, {strategies.SlidingLog{MinInterval: interval}}, {strategies.SlidingLog{CountDenied: true}},
		{strategies.SlidingLog{CountDenied: true, MinInterval: interval}},
		{strategies.SlidingLog{CountDenied: true, MinInterval: interval}, strategies.SlidingLog{MinInterval: interval}},
	}
}

// windowModel is a key, as a list of what was granted or denied when: a cell for each sixth of a window, or for each
// grant.
type windowModel struct {
	cell func(window time.Duration) int64 // nanoseconds of a cell
	strategies.SlidingLog
	log  []windowGrants
	last int64 // write
}

// decides sets by which strategy.
func (m *windowModel) decides(by strategies.Strategy) {
	m.cell = by.Rule().(interface{ Cell(time.Duration) int64 }).Cell //nolint:forcetypeassert // see windowStrategies
	m.SlidingLog, _ = by.(strategies.SlidingLog)
}

type windowGrants struct {
	tokens, last int64
	window       time.Duration
	denied       bool
}

// counts says that the tokens count, some time or still.
func (m windowModel) counts(g windowGrants) bool { return g.tokens > 0 && (m.CountDenied || !g.denied) }

// closed is for how long nothing is granted, because of the least distance.
func (m windowModel) closed(now int64) (left int64) {
	for _, g := range m.log {
		if m.counts(g) {
			left = max(left, g.last+int64(m.MinInterval)-now)
		}
	}
	return left
}

// deny adds a denial, and forgets those before a whole burst of newer ones.
func (m *windowModel) deny(now, tokens int64, limit pglimit.Limit) {
	m.last = now
	m.log = append(m.log, windowGrants{min(tokens, limit.Burst), now, limit.Window(), true})
	newer := int64(0)
	for i := len(m.log) - 1; i >= 0; i-- {
		g := &m.log[i]
		if !g.denied || now-g.last >= int64(max(g.window, m.MinInterval)) {
			continue
		}
		if newer += g.tokens; newer-g.tokens >= limit.Burst {
			g.tokens = 0
		}
	}
}

// stepped is the key when the clock shows now: what was granted ahead of it is as old as it was at the last write.
func (m windowModel) stepped(now int64) windowModel {
	m.log = slices.Clone(m.log)
	if back := m.last - now; back > 10_000_000 {
		for i := range m.log {
			m.log[i].last -= back
		}
		m.last = now
	}
	return m
}

// ends is how long after now each grant comes back under the limit; what is back is left out.
func (m windowModel) ends(now int64, limit pglimit.Limit) (ends []int64) {
	for _, g := range m.log {
		if left := g.last + int64(min(g.window, limit.Window())) - now; left > 0 && m.counts(g) {
			ends = append(ends, slices.Repeat([]int64{left}, int(g.tokens))...)
		}
	}
	slices.Sort(ends)
	return ends
}

func (m *windowModel) take(now int64, r *rate.Request) (d pglimit.Decision) {
	if *m = m.stepped(now); m.last > now { // a little ahead is no step
		now = m.last
	}
	if free := r.Limit.Burst - int64(len(m.ends(now, r.Limit))); free > 0 {
		d.Granted = min(free, r.Tokens) / r.Unit * r.Unit
	}
	if m.MinInterval > 0 {
		d.Granted = min(d.Granted, r.Unit)
	}
	if m.closed(now) > 0 {
		d.Granted = 0
	}
	if d.Granted > 0 {
		m.last = now
		i := lastIndexFunc(m.log, func(g windowGrants) bool {
			cell := m.cell(r.Limit.Window())
			return g.tokens > 0 && !g.denied && g.window == r.Limit.Window() && g.last/cell == now/cell && now-g.last < int64(g.window)
		})
		if i < 0 {
			i, m.log = len(m.log), append(m.log, windowGrants{window: r.Limit.Window()})
		}
		m.log[i].tokens, m.log[i].last = m.log[i].tokens+d.Granted, now
	}
	if denied := (r.Tokens - d.Granted) / r.Unit * r.Unit; denied > 0 && m.CountDenied {
		m.deny(now, denied, r.Limit)
	}
	return m.tell(now, r, d)
}

func (m windowModel) tell(now int64, r *rate.Request, d pglimit.Decision) pglimit.Decision {
	ends := m.ends(now, r.Limit)
	d.At = time.Unix(0, now).UTC()
	d.Remaining = max(0, r.Limit.Burst-int64(len(ends)))
	upwards := func(ns int64) time.Duration { return time.Duration((ns + 999) / 1000 * 1000) }
	if lacks := int64(len(ends)) - (r.Limit.Burst - r.Unit); lacks > 0 {
		d.RetryAfter = upwards(ends[lacks-1])
	}
	if len(ends) > 0 {
		d.ResetAfter = upwards(ends[len(ends)-1])
	}
	closed := upwards(m.closed(now))
	d.RetryAfter, d.ResetAfter = max(d.RetryAfter, closed), max(d.ResetAfter, closed)
	d.Allowed = d.Granted > 0 || r.Tokens == 0 && d.RetryAfter == 0
	return d
}

// lastIndexFunc is slices.IndexFunc from the end.
func lastIndexFunc(log []windowGrants, is func(windowGrants) bool) int {
	for i := len(log) - 1; i >= 0; i-- {
		if is(log[i]) {
			return i
		}
	}
	return -1
}

func (m *windowModel) giveBack(r pglimit.Refund) {
	cell, at := m.cell(r.Limit.Window()), r.At.UnixNano()
	first := -1
	for i, g := range m.log {
		if g.tokens > 0 && !g.denied && g.window == r.Limit.Window() && g.last/cell == at/cell && g.last >= at && (first < 0 || g.last < m.log[first].last) {
			first = i
		}
	}
	if first >= 0 {
		m.log[first].tokens = max(0, m.log[first].tokens-r.Tokens)
	}
}

// Random histories are decided as the model decides them: takes and peeks under limits that change, several of them in
// one call, refunds, resets, sweeps, and steps of the clock. The clock is the test's.
func TestReplayOfWindows(t *testing.T) {
	t.Parallel()
	for i, callers := range windowStrategies() {
		strategy := callers[0]
		t.Run(fmt.Sprint(strategy.Name(), i), func(t *testing.T) {
			t.Parallel()
			mixed := len(callers) > 1
			pool := newPool(t, databaseURL(newMigrated(t)), 1) // the clock is the connection's
			execute(t, pool, replayClock)
			random := rand.New(rand.NewPCG(uint64(i), 71))
			limits := [][]pglimit.Limit{
				{pglimit.Per(10, time.Second)},
				{pglimit.Per(100, time.Minute), pglimit.Per(20, 10*time.Second), pglimit.Per(100, time.Minute).WithBurst(7)},
				{pglimit.Every(time.Second), pglimit.Per(3, 700*time.Microsecond)},
			}
			models, events := make([]windowModel, len(limits)), make([][]audit.Event, len(limits))
			now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()
			var refunds []pglimit.Refund
			granted, stepped := 0, false
			began := make([]bool, len(limits)) // the events are not all since the key was full
			for op := range 1200 {
				strategy := callers[random.IntN(len(callers))]
				for key := range models {
					models[key].decides(strategy)
				}
				key := random.IntN(len(limits))
				m, limit := &models[key], limits[key][random.IntN(len(limits[key]))]
				switch random.IntN(12) {
				case 0, 1, 2, 3:
					now += random.Int64N(int64(limit.Window())/4+1) / 1000 * 1000
				case 4:
					if m.log != nil { // to when something comes back, or just before it
						now = max(now, m.log[random.IntN(len(m.log))].last+int64(limit.Window())-1000*random.Int64N(2))
					}
				case 5:
					if op > 600 && random.IntN(4) == 0 {
						stepped = true
						now += []int64{-1, 1}[random.IntN(2)] * []int64{5e6, 1e8, 1e9, 6e10}[random.IntN(4)]
					}
				}
				clockIs(t, pool, now)
				r := rate.Request{Limiter: "test", Key: fmt.Sprint(key), Limit: limit, Tokens: 1 + random.Int64N(limit.Burst)}
				r.Unit = 1 + random.Int64N(min(3, r.Tokens))
				if random.IntN(2) == 0 {
					r.Unit = r.Tokens
				}
				var requests []rate.Request
				switch random.IntN(10) {
				case 0:
					r.Tokens = 0
					requests = []rate.Request{r}
				case 1:
					requests = []rate.Request{r, r}
				case 2:
					must(t, strategy.Reset(t.Context(), on(pool), "test", r.Key))
					m.log, m.last, events[key], began[key] = nil, 0, nil, false
				case 3:
					_, err := strategy.Sweep(t.Context(), on(pool), 0, 1000)
					must(t, err)
				case 4:
					if len(refunds) > 0 {
						back := refunds[len(refunds)-1-random.IntN(min(6, len(refunds)))]
						must(t, strategy.GiveBack(t.Context(), on(pool), []pglimit.Refund{back}))
						refunds = nil
						var of int
						_, _ = fmt.Sscan(back.Key, &of)
						models[of].giveBack(back)
						events[of], began[of] = nil, true
					}
				default:
					requests = []rate.Request{r}
				}
				if len(requests) == 0 {
					continue
				}
				for i, got := range takeAll(t, pool, strategy, requests...) {
					r := requests[i]
					var want pglimit.Decision
					if r.Tokens == 0 {
						is := m.stepped(now)
						want = is.tell(max(now, is.last), &r, want)
					} else {
						want = m.take(now, &r)
					}
					want.HasRow = want.ResetAfter > 0 || got.HasRow // a full bucket may have one
					if got != want {
						t.Fatalf("operation %d, key %d, %+v:\n got %+v\nwant %+v\nof %+v", op, key, r, got, want, *m)
					}
					if got.Granted > 0 {
						granted++
						refunds = append(refunds, pglimit.Refund{Request: r, At: got.At})
						refunds[len(refunds)-1].Tokens = got.Granted
						refunds[len(refunds)-1].Unit = 1
					}
					if events[key] = append(events[key], audit.FromDecision(r.Tokens, r.Unit, got)); !stepped && key == 0 && op%10 == 0 { // it counts all from the beginning
						if report := audit.Check(strategy.Rule(), limit, events[key]); report.Over.Tokens > 0 || !mixed && !began[key] && !report.OK() {
							t.Fatalf("operation %d: %v", op, report)
						}
					}
				}
			}
			if granted < 200 {
				t.Errorf("%d grants: this says little", granted)
			}
		})
	}
}
