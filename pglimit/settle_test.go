package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// costly is a Limiter of one token per second, burst 10.
func costly(t *testing.T, s pglimit.Strategy, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	return waiting(t, s, func(c *pglimit.Config) {
		c.Limit = pglimit.PerSecond(1).WithBurst(10)
		if change != nil {
			change(c)
		}
	})
}

func allowN(t *testing.T, limiter *pglimit.Limiter, n int64) pglimit.Decision {
	t.Helper()
	d, err := limiter.AllowN(t.Context(), "k", n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The decisions of a group are settled in one round trip.
func TestSettleAGroup(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	var trips []pglimit.RoundTrip
	limiter, err := pglimittest.New(memory, config(func(c *pglimit.Config) {
		c.Limit = pglimit.PerHour(10)
		c.OnRoundTrip = func(_ context.Context, trip pglimit.RoundTrip) { trips = append(trips, trip) }
	}))
	if err != nil {
		t.Fatal(err)
	}
	left := func(want int64) {
		t.Helper()
		for _, key := range []string{"user", "org"} {
			if d, err := limiter.Peek(t.Context(), key); err != nil || d.Remaining != want {
				t.Errorf("%s: %+v, %v; want %d", key, d, err, want)
			}
		}
	}
	for _, test := range []struct {
		actual, charged, left int64
		operation             string
	}{{3, 3, 7, "give_back"}, {7, 7, 3, "take"}, {30, 20, 0, "take"}} {
		g, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "user", Tokens: 5}, pglimit.Request{Key: "org", Tokens: 5})
		if err != nil || !g.Allowed {
			t.Fatalf("%+v, %v", g, err)
		}
		trips = nil
		d, err := limiter.Settle(t.Context(), g.Decisions[0], test.actual, g.Decisions[1:]...)
		if d.Granted != test.charged || errors.Is(err, pglimit.ErrNotCharged) != (test.charged < test.actual) {
			t.Errorf("%d: %+v, %v", test.actual, d, err)
		}
		if len(trips) != 1 || trips[0].Operation != test.operation {
			t.Errorf("%d: %+v", test.actual, trips)
		}
		left(test.left)
		memory.Advance(24 * time.Hour)
	}
}

// What cannot be given back, or settled, is an error that says why, and changes nothing.
func TestBadRefunds(t *testing.T) {
	t.Parallel()
	s := newStore()
	limiter := costly(t, s, nil)
	granted := allowN(t, limiter, 5)
	denied := allowN(t, limiter, 6)
	fallback := granted
	fallback.Source = pglimit.FromFallback
	undated, undue := granted, granted // as ones that were stored in part
	undated.At, undue.Delay = time.Time{}, -1
	settled, err := limiter.Settle(t.Context(), granted, 5)
	if err != nil || settled.Granted != 5 {
		t.Errorf("%+v, %v", settled, err)
	}
	for _, test := range []struct {
		decision pglimit.Decision
		n        int64
		field    string
		settle   int64
	}{
		{denied, 1, "Tokens", 1}, {fallback, 1, "Source", 1}, {settled, 1, "Limiter", 1},
		{undated, 1, "At", 6}, {undue, 1, "At", 6},
		{pglimit.Decision{}, 1, "Limiter", 1}, {granted, 0, "Tokens", -1}, {granted, -1, "Tokens", -1}, {granted, 6, "Tokens", math.MinInt64},
	} {
		var request *pglimit.RequestError
		if err := limiter.Refund(t.Context(), test.decision, test.n); !errors.As(err, &request) || request.Field != test.field {
			t.Errorf("refund of %d of %+v: %v", test.n, test.decision, err)
		}
		if _, err := limiter.Settle(t.Context(), test.decision, test.settle); !errors.As(err, &request) || request.Field != test.field {
			t.Errorf("settle %+v as %d: %v", test.decision, test.settle, err)
		}
	}
	incomplete := granted // as one that was stored in part
	incomplete.Limit.Period = 0
	var limit *pglimit.LimitError
	if err := limiter.Refund(t.Context(), incomplete, 1); !errors.As(err, &limit) {
		t.Error(err)
	}
	if _, err := limiter.Settle(t.Context(), incomplete, 6); !errors.As(err, &limit) {
		t.Error(err)
	}
	if len(s.refunds) != 0 || len(s.taken) > 2 {
		t.Errorf("%d refunds, %d calls", len(s.refunds), len(s.taken))
	}
	// A strategy that takes nothing back, and one that charges nothing ahead.
	plain := costly(t, onlyPlain{pglimittest.Memory()}, nil)
	granted = allowN(t, plain, 5)
	_, more := plain.Settle(t.Context(), granted, 6)
	for name, err := range map[string]error{"refund": plain.Refund(t.Context(), granted, 1), "settle": more} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.memory.Fail(errDown)
	if err := limiter.Refund(t.Context(), granted, 1); !errors.Is(err, errDown) || !strings.HasPrefix(err.Error(), `pglimit: refund of "k": `) {
		t.Error(err)
	}
}

// Settle charges what it cost: the rest is given back, or charged too, up to one burst of debt,
// which is paid before the next grant.
func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ granted, others, actual, charged, owed int64 }{
			{5, 0, 5, 5, 5},
			{5, 0, 2, 2, 2},
			{5, 0, 0, 0, 0},
			{5, 0, 8, 8, 8},
			{5, 5, 15, 15, 20},
			{5, 5, 9, 9, 14},
			{10, 0, 20, 20, 20},
			{1, 9, 11, 11, 20},
		} {
			s := newStore()
			limiter := costly(t, s, func(c *pglimit.Config) { c.OnError = pglimit.FailOpen })
			granted := allowN(t, limiter, test.granted)
			if test.others > 0 {
				allowN(t, limiter, test.others)
			}
			d, err := limiter.Settle(t.Context(), granted, test.actual)
			if err != nil || d.Granted != test.charged || !d.Allowed || d.Delay != 0 {
				t.Errorf("%+v: %+v, %v", test, d, err)
			}
			if owed := s.owes("k", limiter.Limit()); owed != 1000*test.owed {
				t.Errorf("%+v: %d thousandths of a token are owed", test, owed)
			}
			if next := allowN(t, limiter, 1); next.Allowed != (test.owed < 10) || test.owed >= 10 && next.RetryAfter != time.Duration(test.owed-9)*time.Second {
				t.Errorf("%+v: then %+v", test, next)
			}
		}
		// Two that cost a burst more: the second is charged what the debt leaves, and says so.
		s := newStore()
		limiter := costly(t, s, nil)
		one, two := allowN(t, limiter, 5), allowN(t, limiter, 5)
		if d, err := limiter.Settle(t.Context(), one, 11); err != nil || d.Granted != 11 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := limiter.Settle(t.Context(), two, 15); !errors.Is(err, pglimit.ErrNotCharged) || !strings.Contains(err.Error(), "9 of 15") || d.Granted != 9 || !d.Allowed || d.Limiter != "" {
			t.Errorf("%+v, %v", d, err)
		}
		if owed := s.owes("k", limiter.Limit()); owed != 20_000 {
			t.Errorf("%d thousandths of a token are owed", owed)
		}
		// One that cost far more: it is charged all that the bucket may owe, and not less than if it had cost less.
		for _, actual := range []int64{20, 21, 1000, math.MaxInt64} {
			s := newStore()
			limiter := costly(t, s, nil)
			var notCharged error
			if actual > 20 {
				notCharged = pglimit.ErrNotCharged
			}
			if d, err := limiter.Settle(t.Context(), allowN(t, limiter, 4), actual); !errors.Is(err, notCharged) || d.Granted != 20 || !d.Allowed {
				t.Errorf("%d: %+v, %v", actual, d, err)
			}
			if owed := s.owes("k", limiter.Limit()); owed != 20_000 {
				t.Errorf("%d: %d thousandths of a token are owed", actual, owed)
			}
		}
		// OnError decides nothing here.
		time.Sleep(5 * time.Second) // or the memory knows that no more can be charged
		s.memory.Fail(errDown)
		if d, err := limiter.Settle(t.Context(), one, 12); !errors.Is(err, errDown) || d != (pglimit.Decision{}) {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// What was granted is given back and settled also when the caller leaves meanwhile, or has left, and it does not wait
// for ever.
func TestWhoHasLeftSettlesAllTheSame(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(ctx context.Context, l *pglimit.Limiter, d pglimit.Decision, r *pglimit.Reservation) error{
		"Refund": func(ctx context.Context, l *pglimit.Limiter, d pglimit.Decision, _ *pglimit.Reservation) error {
			return l.Refund(ctx, d, 2)
		},
		"Settle for less": func(ctx context.Context, l *pglimit.Limiter, d pglimit.Decision, _ *pglimit.Reservation) error {
			_, err := l.Settle(ctx, d, 3)
			return err
		},
		"Settle for more": func(ctx context.Context, l *pglimit.Limiter, d pglimit.Decision, _ *pglimit.Reservation) error {
			_, err := l.Settle(ctx, d, 7)
			return err
		},
		"Cancel": func(ctx context.Context, _ *pglimit.Limiter, _ pglimit.Decision, r *pglimit.Reservation) error {
			return r.Cancel(ctx)
		},
	} {
		for leaves, lasts := range map[time.Duration]time.Duration{0: 0, ms: 900 * ms, 2 * ms: time.Hour} {
			for _, timeout := range []time.Duration{3 * time.Second, pglimit.NoTimeout} {
				t.Run(fmt.Sprintf("%s, which takes %v, Timeout %v", name, lasts, timeout), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						s := newStore()
						limiter := costly(t, s, func(c *pglimit.Config) { c.Timeout = timeout })
						granted := allowN(t, limiter, 5)
						reserved, err := limiter.ReserveN(t.Context(), "k", 2)
						if err != nil {
							t.Fatal(err)
						}
						s.latency = lasts / 2 // each way
						ctx, leave := context.WithCancel(t.Context())
						if leaves == 0 {
							leave()
						}
						time.AfterFunc(leaves, leave)
						began := time.Now()
						err = settle(ctx, limiter, granted, reserved)
						took := time.Since(began)
						if lasts == time.Hour {
							if longest := max(timeout, time.Second+leaves); err == nil || took != longest {
								t.Errorf("%v after %v, want an error after %v", err, took, longest)
							}
							later(time.Second) // the call that nobody waits for ends too
							return
						}
						want := int64(5000) // of seven tokens
						if name == "Settle for more" {
							want = 9000 - took.Milliseconds()
						}
						if owed := s.owes("k", limiter.Limit()); err != nil || owed != want {
							t.Errorf("%v; %d thousandths of a token are owed, want %d", err, owed, want)
						}
					})
				})
			}
		}
	}
}

func ExampleLimiter_Refund() {
	ctx := context.Background()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{ // in production: pglimit.New(pool, strategies.TokenBucket{}, …)
		Name:  "failed logins",
		Limit: pglimit.PerHour(1).WithBurst(3),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, password := range []string{"1234", "letmein", "correct", "correct", "qwerty", "correct"} {
		d, err := limiter.Allow(ctx, "user:42") // taken first, so that nobody can try many at once
		switch {
		case err != nil:
			fmt.Println(err)
		case !d.Allowed:
			fmt.Println("too many failures")
		case password == "correct":
			fmt.Println("welcome")
			if err := limiter.Refund(ctx, d, 1); err != nil {
				fmt.Println(err)
			}
		default:
			fmt.Println("wrong password")
		}
	}
	// Output:
	// wrong password
	// wrong password
	// welcome
	// welcome
	// wrong password
	// too many failures
}

func ExampleLimiter_Settle() {
	ctx := context.Background()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{ // in production: pglimit.New(pool, strategies.TokenBucket{}, …)
		Name:  "model tokens",
		Limit: pglimit.PerHour(1000),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := limiter.AllowN(ctx, "user:42", 600) // an estimate
	if err != nil || !d.Allowed {
		fmt.Println("denied", err)
		return
	}
	d, err = limiter.Settle(ctx, d, 450) // what it was
	if err != nil {
		fmt.Println(err)
		return
	}
	left, err := limiter.Peek(ctx, "user:42")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("charged", d.Granted, "of the estimate; left:", left.Remaining)
	// Output:
	// charged 450 of the estimate; left: 550
}

// What is given back can be had at once: the memory of the denial ends, also where nobody
// knows whether it was given back.
func TestARefundEndsTheMemoryOfADenial(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errDown} {
		synctest.Test(t, func(t *testing.T) {
			there := map[string]int64{"a": 2}
			s := newServer(buckets(there))
			s.giveBack = func(context.Context) error {
				there["a"] += 2
				return err
			}
			c := combining(t, s, func(c *pglimit.Config) { c.Memory.Off = false })
			c.ask(t.Context(), "z", 1)
			ctx, leave := context.WithCancel(t.Context())
			c.ask(ctx, "a", 2) // the last two, which leaves none: that is remembered
			s.finish()
			leave()
			synctest.Wait()
			s.finish()
			h := c.ask(t.Context(), "a", 2)
			if len(s.taken) != 3 {
				t.Fatalf("answered from the memory: %+v", h)
			}
			s.finish()
			stats := c.limiter.Stats()
			if h.err != nil || !h.Allowed || err == nil && stats.GivenBack != 2 || err != nil && stats.LostTokens != 2 {
				t.Errorf("%+v, %+v", h, stats)
			}
		})
	}
}

// What any call granted can be given back, and settled.
func TestWhateverWasGrantedCanBeGivenBack(t *testing.T) {
	t.Parallel()
	plan := pglimit.PerHour(50)
	for name, take := range map[string]func(*testing.T, *pglimit.Limiter) (pglimit.Decision, error){
		"AllowN": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) { return l.AllowN(t.Context(), "k", 3) },
		"DoAll": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			g, err := l.DoAll(t.Context(), pglimit.Request{Key: "other", Tokens: 1}, pglimit.Request{Key: "k", Limiter: "day", Limit: plan, Tokens: 3})
			return g.Decisions[1], err
		},
		"an ID": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			d, err := l.DoEach(t.Context(), pglimit.Request{Key: "k", Tokens: 3, ID: "id"})
			return d[0], err
		},
		"Do": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			return l.Do(t.Context(), pglimit.Request{Key: "k", Limit: plan, Tokens: 3})
		},
		"ReserveN": func(t *testing.T, l *pglimit.Limiter) (pglimit.Decision, error) {
			r, err := l.ReserveN(t.Context(), "k", 3)
			return r.Decision(), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				limiter := onMemory(t, pglimittest.MemoryOn(time.Now), nil)
				granted, err := take(t, limiter)
				if err != nil || granted.Granted != 3 {
					t.Fatalf("%+v, %v", granted, err)
				}
				owed := func() time.Duration {
					d, err := limiter.DoEach(t.Context(), pglimit.Request{Limiter: granted.Limiter, Key: granted.Key, Limit: granted.Limit})
					if err != nil {
						t.Error(err)
					}
					return d[0].ResetAfter
				}
				if err := limiter.Refund(t.Context(), granted, 1); err != nil || owed() != 2*granted.Limit.Token() {
					t.Errorf("%v is owed, %v", owed(), err)
				}
				granted.Granted = 2
				if d, err := limiter.Settle(t.Context(), granted, 7); err != nil || d.Granted != 7 || owed() != 7*granted.Limit.Token() {
					t.Errorf("%v is owed, %+v, %v", owed(), d, err)
				}
			})
		})
	}
}
