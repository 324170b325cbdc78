package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/queue"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const ms = time.Millisecond

// line is a Queue of callers who reserve a token of one bucket each: there is one every 100 ms.
type line struct {
	*queue.Queue
	t      *testing.T
	began  time.Time
	travel time.Duration // to Postgres, and that of what is given back

	mu       sync.Mutex
	reserved time.Duration
	back     []time.Duration // when the tokens were due that were given back
	calls    int
}

func newLine(t *testing.T) *line {
	l := &line{t: t, began: time.Now()}
	l.Queue = queue.New(func(_ context.Context, refunds []rate.Refund) error {
		time.Sleep(l.travel)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls++
		for _, r := range refunds {
			l.back = append(l.back, r.At.Add(r.Delay).Sub(l.began))
			if r.Tokens == 1 && l.back[len(l.back)-1] == l.reserved {
				l.reserved -= 100 * ms
			}
		}
		return nil
	})
	return l
}

// caller is one who waits.
type caller struct {
	request []rate.Request // one
	leave   context.CancelFunc
	asked   bool // Postgres
	due     time.Duration
	err     error
	over    bool
}

// comes one who wants tokens, and may wait for so long.
func (l *line) comes(tokens int64, longest time.Duration) *caller {
	ctx, leave := context.WithTimeout(l.t.Context(), time.Hour)
	request := rate.Request{Limiter: "test", Key: "k", Tokens: tokens, Unit: tokens, Ahead: longest}
	c := &caller{leave: leave, request: []rate.Request{request}}
	go func() {
		defer leave()
		own, err := l.Join(ctx, c.request)
		if own == nil && err == nil {
			own, err = l.ask(c)
		}
		if own != nil {
			if err = l.Wait(ctx, own); err == nil {
				d := l.Done(c.request, own)[0]
				l.mu.Lock()
				c.due = d.At.Add(d.Delay).Sub(l.began)
				l.mu.Unlock()
			} else {
				l.GiveUp(ctx, c.request, own)
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		c.err, c.over = err, true
	}()
	synctest.Wait()
	return c
}

func (l *line) ask(c *caller) (*queue.Waiter, error) {
	l.mu.Lock()
	c.asked = true
	at := time.Now()
	delay := l.reserved + 100*ms - at.Sub(l.began)
	d := rate.Decision{At: at, Source: rate.FromDatabase, RetryAfter: delay}
	if delay <= c.request[0].Ahead {
		l.reserved += 100 * ms
		d.Allowed, d.Granted, d.Delay = true, c.request[0].Tokens, delay
	}
	l.mu.Unlock()
	time.Sleep(l.travel)
	own := l.Answered(c.request, []rate.Decision{d})
	if own == nil {
		return nil, queue.ErrTooLong
	}
	return own, nil
}

// is what has become of the caller.
func (l *line) is(c *caller) caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	return caller{asked: c.asked, due: c.due, err: c.err, over: c.over}
}

// wants says when the callers were served; 0: they were not.
func (l *line) wants(callers []*caller, due ...time.Duration) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range callers {
		if !c.over || c.due != due[i] {
			l.t.Errorf("caller %d: due after %v, want %v: over %t, %v", i, c.due, due[i], c.over, c.err)
		}
	}
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Those behind one who gives up move up, and the last place is given back.
func TestWhoGivesUpLeavesTheLastPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		var callers []*caller
		for range 6 {
			callers = append(callers, l.comes(1, time.Hour))
		}
		callers[1].leave()
		synctest.Wait()
		callers[3].leave()
		later(time.Second)
		l.wants(callers, 100*ms, 0, 200*ms, 0, 300*ms, 400*ms)
		if l.back[0] != 600*ms || l.back[1] != 500*ms || l.Stats.GivenBack.Load() != 2 || l.Len() != 0 {
			t.Errorf("given back %v, %d wait", l.back, l.Len())
		}
	})
}

// While somebody asks, nothing can be given back: a vacant place is for the next caller who may wait for it, and
// for no second one. Who was asking takes the earliest that is left, and leaves his own.
func TestAVacantPlaceIsGivenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		var callers []*caller
		for range 4 {
			callers = append(callers, l.comes(1, time.Hour))
		}
		l.travel = 10 * ms
		asking := l.comes(1, time.Hour) // for the place at 500 ms
		callers[1].leave()
		callers[2].leave() // those at 300 and 400 ms are vacant
		synctest.Wait()
		second, third := l.comes(1, time.Hour), l.comes(1, 350*ms)
		if l.Stats.PassedOn.Load() != 1 || l.is(second).asked || l.is(third).asked {
			t.Errorf("%d passed on; %+v, %+v", l.Stats.PassedOn.Load(), l.is(second), l.is(third))
		}
		later(time.Second)
		if third := l.is(third); !third.asked || !errors.Is(third.err, queue.ErrTooLong) {
			t.Errorf("%+v", third)
		}
		l.wants([]*caller{callers[0], callers[3], second, asking}, 100*ms, 200*ms, 300*ms, 400*ms)
	})
}

// Many who give up share a call, the last place first; it is one call at a time.
func TestManyWhoGiveUpShareACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		var callers []*caller
		for range 50 {
			callers = append(callers, l.comes(1, time.Hour))
		}
		l.travel = ms
		for _, c := range callers[10:] {
			c.leave()
		}
		later(10 * ms)
		if l.reserved != 1000*ms || l.calls > 2 || l.Stats.GivenBack.Load() != 40 {
			t.Errorf("reserved up to %v, after %d calls, %d given back", l.reserved, l.calls, l.Stats.GivenBack.Load())
		}
		later(time.Minute)
	})
}

// While a place is given back, new callers wait for the next that is vacant. They do not wait for long if these are not
// for them: for another number of tokens, or due too late.
func TestNobodyWaitsAtTheDoorForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		var callers []*caller
		for range 40 {
			callers = append(callers, l.comes(1, time.Hour))
		}
		l.travel = 100 * ms
		callers[39].leave()
		later(10 * ms)
		one, two, soon := l.comes(1, time.Hour), l.comes(2, time.Hour), l.comes(1, 500*ms)
		for i, c := range []*caller{one, two, soon} {
			if l.is(c).asked {
				t.Errorf("%d has asked", i)
			}
		}
		callers[38].leave()
		later(10 * ms)
		if l.Stats.PassedOn.Load() != 1 || l.is(one).asked {
			t.Errorf("%d passed on; %+v", l.Stats.PassedOn.Load(), l.is(one))
		}
		for i := range 20 {
			callers[37-i].leave()
			later(50 * ms)
		}
		later(10 * time.Second)
		if two := l.is(two); two.err != nil || !two.asked || two.due == 0 {
			t.Errorf("%+v", two)
		}
		if soon := l.is(soon); !errors.Is(soon.err, queue.ErrTooLong) {
			t.Errorf("%+v", soon)
		}
	})
}

// Postgres may date a caller a little after a vacant place was due: he has that place, or its tokens would be lost.
func TestAPlaceThatIsALittleOverdueIsTaken(t *testing.T) {
	t.Parallel()
	for late, due := range map[time.Duration]time.Duration{10 * ms: 100 * ms, 10*ms + 1: 200 * ms} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			q := queue.New(func(context.Context, []rate.Refund) error { return nil })
			request := []rate.Request{{Limiter: "test", Key: "k", Tokens: 1, Unit: 1, Ahead: time.Hour}}
			asks := func() {
				if own, err := q.Join(t.Context(), request); own != nil || err != nil {
					t.Fatal(own, err)
				}
			}
			answered := func(at, due time.Duration) *queue.Waiter {
				time.Sleep(time.Until(began.Add(at)))
				d := rate.Decision{Allowed: true, Granted: 1, Source: rate.FromDatabase, At: began.Add(at), Delay: due - at}
				return q.Answered(request, []rate.Decision{d})
			}
			asks()
			first := answered(0, 100*ms)
			asks()
			time.Sleep(99 * ms)
			go q.GiveUp(t.Context(), request, first)
			synctest.Wait()
			second := answered(100*ms+late, 200*ms)
			if err := q.Wait(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			if d := q.Done(request, second)[0]; d.At.Add(d.Delay).Sub(began) != due {
				t.Errorf("dated %v late, it is due after %v, want %v", late, d.At.Add(d.Delay).Sub(began), due)
			}
		})
	}
}

// Close wakes those who wait for their turn, and those at the door. All is given back when it returns.
func TestCloseWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t)
		for range 3 {
			if err := l.Enter(1); err != nil {
				t.Fatal(err)
			}
		}
		l.travel = 10 * ms
		first, second := l.comes(1, time.Hour), l.comes(1, time.Hour)
		later(10 * ms)
		second.leave()
		synctest.Wait()
		door := l.comes(1, time.Hour)
		for _, c := range []*caller{first, second, door} {
			go func() {
				for !l.is(c).over {
					time.Sleep(ms)
				}
				l.Leave(1)
			}()
		}
		if err := l.Close(t.Context()); err != nil || l.Len() != 0 || l.reserved != 0 {
			t.Errorf("%v, %d wait, reserved up to %v", err, l.Len(), l.reserved)
		}
		for i, want := range []error{rate.ErrClosed, context.Canceled, rate.ErrClosed} {
			if c := l.is([]*caller{first, second, door}[i]); !errors.Is(c.err, want) {
				t.Errorf("%d: %+v", i, c)
			}
		}
	})
}
