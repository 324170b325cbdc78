package group_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/group"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// calls are what the Lane calls: they do as the test says, and remember what they were asked. As
// they are, they grant everything and know of no denial.
type calls struct {
	send     func(ctx context.Context, groups [][]rate.Request) error // nil: all are granted
	giveBack func(ctx context.Context) error
	recall   func(group []rate.Request) bool

	mu      sync.Mutex
	asked   []string // such as "a+b c" of each call; with a "!" if it is patient
	refunds []string
}

func (c *calls) lane() *group.Lane {
	return group.New(group.Calls{
		Send: func(ctx context.Context, groups [][]rate.Request) ([][]rate.Decision, error) {
			c.mu.Lock()
			c.asked = append(c.asked, text(groups))
			c.mu.Unlock()
			if c.send != nil {
				if err := c.send(ctx, groups); err != nil {
					return nil, err
				}
			}
			decisions := make([][]rate.Decision, len(groups))
			for i := range groups {
				for _, r := range groups[i] {
					decisions[i] = append(decisions[i], rate.Decision{Allowed: true, Granted: r.Tokens})
				}
			}
			return decisions, nil
		},
		GiveBack: func(ctx context.Context, refunds []rate.Refund) error {
			for _, r := range refunds {
				c.refunds = append(c.refunds, fmt.Sprintf("%s:%d", r.Key, r.Tokens))
			}
			if c.giveBack != nil {
				return c.giveBack(ctx)
			}
			return nil
		},
		Recall: func(group []rate.Request) ([]rate.Decision, bool) {
			known := c.recall != nil && c.recall(group)
			return make([]rate.Decision, len(group)), known
		},
	})
}

func text(groups [][]rate.Request) string {
	var texts []string
	for _, group := range groups {
		var keys []string
		for _, r := range group {
			keys = append(keys, r.Key)
		}
		text := strings.Join(keys, "+")
		if !group[0].Impatient {
			text += "!"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// groupOf is the group "a+b".
func groupOf(keys string) (group []rate.Request) {
	for key := range strings.SplitSeq(keys, "+") {
		group = append(group, rate.Request{Limiter: "test", Key: key, Limit: rate.PerHour(1000), Tokens: 2, Unit: 2})
	}
	return group
}

// heard is what a caller was told.
type heard struct {
	mu        sync.Mutex
	decisions []rate.Decision
	err       error
}

func (h *heard) told() ([]rate.Decision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.decisions, h.err
}

var errNoAnswer = errors.New("no answer yet")

// ask in a goroutine of its own, behind all who have asked before.
func ask(ctx context.Context, l *group.Lane, group []rate.Request) *heard {
	h := &heard{err: errNoAnswer}
	go func() {
		decisions, err := l.Decide(ctx, group)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.decisions, h.err = decisions, err
	}()
	synctest.Wait()
	return h
}

func (h *heard) granted(t *testing.T) {
	t.Helper()
	if decisions, err := h.told(); err != nil || len(decisions) == 0 || decisions[0].Granted != 2 {
		t.Errorf("%+v, %v: want a grant", decisions, err)
	}
}

// wants an error, such as errNoAnswer.
func (h *heard) wants(t *testing.T, want error) {
	t.Helper()
	if decisions, err := h.told(); !errors.Is(err, want) {
		t.Errorf("%+v, %v: want %v", decisions, err, want)
	}
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (c *calls) wants(t *testing.T, asked ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.asked, asked) {
		t.Errorf("asked %q, want %q", c.asked, asked)
	}
}

// slow is a send that takes a second.
func slow(context.Context, [][]rate.Request) error {
	time.Sleep(time.Second)
	return nil
}

// A group that finds the lane idle goes out at once. Those that arrive meanwhile are the next
// call, in order, unless one has another limit for a bucket, or they are too many.
func TestGroupsThatArriveDuringACallAreTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{send: slow}
		l := c.lane()
		other := groupOf("x+b")
		other[1].Limit = rate.PerHour(5)
		large := groupOf("y0")
		for i := range 1023 {
			large = append(large, groupOf(fmt.Sprint("y", i+1))...)
		}
		groups := [][]rate.Request{groupOf("a+b"), groupOf("b+c"), groupOf("d"), other, groupOf("e+x"), large, groupOf("f")}
		var heards []*heard
		for _, g := range groups {
			heards = append(heards, ask(t.Context(), l, g))
		}
		later(10 * time.Second)
		for i, h := range heards {
			h.granted(t)
			if decisions, _ := h.told(); len(decisions) != len(groups[i]) {
				t.Errorf("group %d: %d decisions", i, len(decisions))
			}
		}
		c.wants(t, "a+b", "b+c d", "x+b e+x", strings.TrimSuffix(text([][]rate.Request{large}), "!"), "f")
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A caller who leaves before his group is sent is not charged. After it, each request is given
// back; what cannot be counts as lost.
func TestACallerWhoLeavesIsNotCharged(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("away")} {
		synctest.Test(t, func(t *testing.T) {
			c := &calls{send: slow, giveBack: func(context.Context) error { return fails }}
			l := c.lane()
			ctx, cancel := context.WithCancel(t.Context())
			sent, stays := ask(ctx, l, groupOf("a+b")), ask(t.Context(), l, groupOf("a+c"))
			queued := ask(ctx, l, groupOf("a+d"))
			cancel()
			synctest.Wait()
			for _, h := range []*heard{sent, queued} {
				h.wants(t, context.Canceled)
			}
			if _, err := l.Decide(ctx, groupOf("a")); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			later(5 * time.Second)
			stays.granted(t)
			c.wants(t, "a+b", "a+c")
			if !slices.Equal(c.refunds, []string{"a:2", "b:2"}) {
				t.Errorf("given back: %q", c.refunds)
			}
			back, lost := int64(4), int64(0)
			if fails != nil {
				back, lost = lost, back
			}
			if l.Stats.GivenBack.Load() != back || l.Stats.Lost.Load() != lost {
				t.Errorf("%d given back, %d lost", l.Stats.GivenBack.Load(), l.Stats.Lost.Load())
			}
		})
	}
}

// A call whose callers have all left is given up, after a while. Its tokens may be lost.
func TestACallThatNobodyWaitsForIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{send: func(ctx context.Context, groups [][]rate.Request) error {
			if groups[0][0].Key != "hangs" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		l := c.lane()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask(ctx, l, groupOf("hangs+a"))
		waits := ask(t.Context(), l, groupOf("b"))
		later(1900 * time.Millisecond)
		waits.wants(t, errNoAnswer)
		later(200 * time.Millisecond)
		waits.granted(t)
		if lost := l.Stats.Lost.Load(); lost != 4 {
			t.Errorf("%d lost", lost)
		}
	})
}

// A caller who left before his group was sent does not count as one who waits for the call.
func TestACallerWhoLeftTheQueueKeepsNoCallAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{send: func(ctx context.Context, groups [][]rate.Request) error {
			switch groups[0][0].Key {
			case "slow":
				time.Sleep(time.Second)
			case "hangs":
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		l := c.lane()
		soon, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		ask(t.Context(), l, groupOf("slow+a"))
		ask(late, l, groupOf("hangs+a"))
		ask(soon, l, groupOf("leaves+a"))
		later(2500 * time.Millisecond)
		waits := ask(t.Context(), l, groupOf("b"))
		later(600 * time.Millisecond)
		waits.granted(t)
	})
}

// After a call that took nothing, only the callers of the group to blame get an error.
func TestTheGroupToBlameFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{send: func(_ context.Context, groups [][]rate.Request) error {
			for _, g := range groups {
				switch g[0].Key {
				case "first":
					time.Sleep(time.Second)
				case "bad":
					return rate.ErrNothingTaken
				}
			}
			return nil
		}}
		l := c.lane()
		heards := make(map[string]*heard)
		for _, keys := range []string{"first", "a+x", "b+x", "bad+x", "c+x"} {
			heards[keys] = ask(t.Context(), l, groupOf(keys))
		}
		later(2 * time.Second)
		c.wants(t, "first", "a+x b+x bad+x c+x", "a+x b+x", "bad+x c+x", "bad+x", "c+x")
		for keys, h := range heards {
			if keys == "bad+x" {
				h.wants(t, rate.ErrNothingTaken)
				continue
			}
			h.granted(t)
		}
	})
}

// A caller who leaves during a call that takes nothing is not asked about again.
func TestACallerWhoLeavesIsNotAskedAboutAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{send: func(_ context.Context, groups [][]rate.Request) error {
			time.Sleep(time.Second)
			if len(groups) > 2 {
				return rate.ErrNothingTaken
			}
			return nil
		}}
		l := c.lane()
		ask(t.Context(), l, groupOf("first"))
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		stays := ask(t.Context(), l, groupOf("a"))
		leaves := ask(ctx, l, groupOf("b"))
		ask(t.Context(), l, groupOf("c"))
		later(10 * time.Second)
		stays.granted(t)
		leaves.wants(t, context.DeadlineExceeded)
		c.wants(t, "first", "a b c", "a", "c")
		if len(c.refunds) > 0 {
			t.Errorf("given back: %q", c.refunds)
		}
	})
}

// An error for which no group is to blame is told to all, without asking once more.
func TestAnErrorOfTheConnectionFailsAll(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	synctest.Test(t, func(t *testing.T) {
		c := &calls{}
		c.send = func(_ context.Context, groups [][]rate.Request) error {
			switch {
			case groups[0][0].Key == "first":
				time.Sleep(time.Second)
				return nil
			case len(groups) > 2:
				return rate.ErrNothingTaken
			}
			return away
		}
		l := c.lane()
		ask(t.Context(), l, groupOf("first"))
		var heards []*heard
		for _, keys := range []string{"a", "b", "c", "d"} {
			heards = append(heards, ask(t.Context(), l, groupOf(keys)))
		}
		later(2 * time.Second)
		c.wants(t, "first", "a b c d", "a b")
		for _, h := range heards {
			h.wants(t, away)
		}
	})
}

// Groups that the call before has found to be denied are not sent.
func TestWhatIsKnownToBeDeniedIsNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var learned atomic.Bool
		c := &calls{send: slow, recall: func(group []rate.Request) bool { return learned.Load() && group[0].Key == "a" }}
		l := c.lane()
		ask(t.Context(), l, groupOf("a+b"))
		denied, other := ask(t.Context(), l, groupOf("a+c")), ask(t.Context(), l, groupOf("b+c"))
		learned.Store(true)
		later(5 * time.Second)
		other.granted(t)
		if decisions, err := denied.told(); err != nil || decisions[0].Granted != 0 {
			t.Errorf("%+v, %v", decisions, err)
		}
		c.wants(t, "a+b", "b+c")
	})
}

// rows are held until they are freed.
type rows struct {
	mu    sync.Mutex
	held  map[string]chan struct{}
	named bool // the error says which are held
}

func (r *rows) hold(key string) (free func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil {
		r.held = make(map[string]chan struct{})
	}
	held := make(chan struct{})
	r.held[key] = held
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.held, key)
		close(held)
	}
}

// send gives up after 20 ms if a row is held, or waits if it is patient.
func (r *rows) send(ctx context.Context, groups [][]rate.Request) error {
	for _, g := range groups {
		for _, request := range g {
			r.mu.Lock()
			held := r.held[request.Key]
			r.mu.Unlock()
			switch {
			case held == nil:
			case !request.Impatient:
				select {
				case <-held:
				case <-ctx.Done():
					return ctx.Err()
				}
			default:
				time.Sleep(20 * time.Millisecond)
				err := fmt.Errorf("%w: %w", rate.ErrLocked, rate.ErrNothingTaken)
				if r.named {
					return &rate.HeldError{Held: []rate.Bucket{{Limiter: "test", Key: request.Key}}, Err: err}
				}
				return err
			}
		}
	}
	time.Sleep(time.Millisecond)
	return nil
}

// While a row is held, its groups wait for it in a call of their own, also those that come later,
// and the others go on. Then all go on.
func TestAHeldRowStallsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := &rows{named: named}
			c := &calls{send: r.send}
			l := c.lane()
			free := r.hold("stuck")
			first := ask(t.Context(), l, groupOf("all+stuck"))
			second := ask(t.Context(), l, groupOf("all+stuck+b"))
			other := ask(t.Context(), l, groupOf("all+c"))
			later(100 * time.Millisecond)
			other.granted(t)
			late := ask(t.Context(), l, groupOf("stuck+d"))
			ask(t.Context(), l, groupOf("all+e"))
			later(100 * time.Millisecond)
			if named {
				c.wants(t, "all+stuck", "all+stuck!", "all+c", "all+e")
			}
			c.mu.Lock()
			before := len(c.asked)
			c.mu.Unlock()
			for range 10 {
				began := time.Now()
				h := ask(t.Context(), l, groupOf("all+c"))
				later(2 * time.Millisecond)
				h.granted(t)
				if took := time.Since(began); took > 2*time.Millisecond {
					t.Errorf("another group waited %v", took)
				}
			}
			for _, h := range []*heard{first, second, late} {
				h.wants(t, errNoAnswer)
			}
			free()
			later(100 * time.Millisecond)
			for _, h := range []*heard{first, second, late} {
				h.granted(t)
			}
			c.mu.Lock()
			after := c.asked[before+10:]
			c.mu.Unlock()
			if named && !slices.Equal(after, []string{"all+stuck+b stuck+d"}) {
				t.Errorf("afterwards: %q", after)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// At most two calls wait for held rows. The groups of a third wait for their turn; a caller may
// leave meanwhile.
func TestTwoCallsWaitForHeldRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rows{named: true}
		c := &calls{send: r.send}
		l := c.lane()
		free := make(map[string]func())
		heards := make(map[string]*heard)
		for _, key := range []string{"a", "b", "c"} {
			free[key] = r.hold(key)
			heards[key] = ask(t.Context(), l, groupOf(key))
			later(30 * time.Millisecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		leaves := ask(ctx, l, groupOf("c+d"))
		c.wants(t, "a", "a!", "b", "b!", "c")
		cancel()
		synctest.Wait()
		leaves.wants(t, context.Canceled)
		free["b"]()
		later(30 * time.Millisecond)
		heards["b"].granted(t)
		c.wants(t, "a", "a!", "b", "b!", "c", "c!")
		free["c"]()
		free["a"]()
		later(30 * time.Millisecond)
		heards["a"].granted(t)
		heards["c"].granted(t)
	})
}

// Close lets callers have their answers, or gives them up: with their calls, those in the queue
// and those who wait for a held row.
//
// Not parallel: it looks at all goroutines.
func TestCloseOfALane(t *testing.T) {
	for _, patient := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := &rows{named: true}
			c := &calls{send: func(ctx context.Context, groups [][]rate.Request) error {
				if groups[0][0].Key != "hangs" {
					return r.send(ctx, groups)
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(2 * time.Second):
					return nil
				}
			}}
			l := c.lane()
			free := r.hold("stuck")
			var heards []*heard
			for _, keys := range []string{"stuck", "stuck+a", "hangs", "b"} {
				heards = append(heards, ask(t.Context(), l, groupOf(keys)))
				later(30 * time.Millisecond)
			}
			time.AfterFunc(time.Second, free)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !patient {
				cancel()
			}
			before := len(c.asked)
			err := l.Close(ctx)
			if patient != (err == nil) {
				t.Error(err)
			}
			synctest.Wait()
			if asked := c.asked[before:]; !patient && len(asked) > 0 {
				t.Errorf("asked %q for callers who were given up", asked)
			}
			for _, h := range heards {
				if patient {
					h.granted(t)
				} else {
					h.wants(t, rate.ErrClosed)
				}
			}
			if _, err := l.Decide(t.Context(), groupOf("a")); !errors.Is(err, rate.ErrClosed) {
				t.Error(err)
			}
			stacks := make([]byte, 1<<20)
			stacks = stacks[:runtime.Stack(stacks, true)]
			if strings.Contains(string(stacks), "group.(*Lane)") {
				t.Errorf("left is\n%s", stacks)
			}
			later(2 * time.Second)
		})
	}
}
