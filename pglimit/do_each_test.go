package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// wants so many tokens of each key, in order: "a:2 b:0 c:6/2" is 2 of a, a peek at b, and of c
// as many units of 2 as there are of 6.
func wants(t *testing.T, text string) (requests []pglimit.Request) {
	t.Helper()
	for word := range strings.FieldsSeq(text) {
		var r pglimit.Request
		key, rest, _ := strings.Cut(word, ":")
		if n, err := fmt.Sscanf(rest, "%d/%d", &r.Tokens, &r.Unit); n == 0 {
			t.Fatal(err)
		}
		r.Key = key
		requests = append(requests, r)
	}
	return requests
}

// granted of each request: "2 - 4/3" is 2, denied, 4 with 3 remaining.
func granted(decisions []pglimit.Decision) string {
	var texts []string
	for _, d := range decisions {
		text := "-"
		if d.Allowed {
			text = fmt.Sprint(d.Granted)
		}
		texts = append(texts, fmt.Sprintf("%s/%d", text, d.Remaining))
	}
	return strings.Join(texts, " ")
}

// bothWays is a test of a Limiter whose requests go out by themselves, and of one that combines.
func bothWays(t *testing.T, test func(t *testing.T, change func(*pglimit.Config))) {
	for name, off := range map[string]bool{"alone": true, "combining": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				test(t, func(c *pglimit.Config) { c.Combine.Off, c.Combine.Lanes = off, 1 })
			})
		})
	}
}

func TestTakeDecidesInOrderAndInOneCall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ ask, alone, combined, want string }{
		{"a:1 b:2 c:0", "a:1 b:2 c:0/1", "a:1 b:2 c:0/1", "1/2 2/18 0/7"},
		{"c:7 b:1 a:1", "c:7 b:1 a:1", "c:7 b:1 a:1", "7/0 1/19 1/2"},
		{"a:2 b:1 a:2 a:1 a:1", "a:2 b:1 a:2 a:1 a:1", "a:4/2 b:1 a:2/1", "2/1 1/19 -/1 1/0 -/0"}, // of one key in their order
		{"a:4", "a:4", "a:4", "-/3"}, // Unit 0: all or nothing
		{"c:10/2 a:3/2 b:20/1", "c:10/2 a:2 b:20/1", "c:10/2 a:2 b:20/1", "6/1 2/1 20/0"}, // as many units as there are
		{"c:3/2 c:3/2 c:2/1", "c:2 c:2 c:2/1", "c:4/2 c:2/1", "2/5 2/3 2/1"},              // whole ones
		{"c:0/7 c:0/8 z:0", "c:0/7 c:0/8 z:0/1", "c:0/7 c:0/8 z:0/1", "0/7 -/7 -/0"},
	} {
		bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
			there := map[string]int64{"a": 3, "b": 20, "c": 7}
			strategy := &fake{take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
				decisions, err := buckets(there)(ctx, requests)
				for i, r := range requests {
					if r.Tokens == 0 {
						decisions[i].Allowed = there[r.Key] >= r.Unit
					}
				}
				return decisions, err
			}}
			limiter := newLimiter(t, strategy, change)
			decisions, err := limiter.DoEach(t.Context(), wants(t, test.ask)...)
			if got := granted(decisions); err != nil || got != test.want {
				t.Errorf("%s: %s, %v; want %s", test.ask, got, err, test.want)
			}
			want := test.combined
			var c pglimit.Config
			if change(&c); c.Combine.Off {
				want = test.alone
			}
			if len(strategy.taken) != 1 || strategy.asked(0) != want {
				t.Errorf("%s: %d calls, asked %s, want %s", test.ask, len(strategy.taken), strategy.asked(0), want)
			}
			for _, d := range decisions {
				if d.Source != pglimit.FromDatabase || d.Limit != limiter.Limit() {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// The request that is at fault is named, and nothing is sent.
func TestTakeTurnsAwayWhatCannotBeAnswered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bad         pglimit.Request
		field, says string
	}{
		{pglimit.Request{Key: "k", Tokens: 1, Limiter: "w\x00b"}, "Limiter", `pglimit: Request.Limiter "w\x00b" has a NUL byte, which Postgres cannot store`},
		{pglimit.Request{Key: "k", Tokens: 1, Limiter: "x (new keys)"}, "Limiter", `pglimit: Request.Limiter is "x (new keys)": that names buckets beside those of limiter "x", so no limiter may end in " (new keys)"`},
		{pglimit.Request{Key: "k", Tokens: 3, Limit: pglimit.PerSecond(2)}, "Tokens", "pglimit: Request.Tokens is 3: more than the burst of 2 (2/1s) could never be granted"},
		{pglimit.Request{Tokens: 1}, "Key", "pglimit: Request.Key is empty: name it, with a constant if there is only one"},
		{pglimit.Request{Key: "a\x00b", Tokens: 1}, "Key", `pglimit: Request.Key "a\x00b" has a NUL byte, which Postgres cannot store`},
		{pglimit.Request{Key: "\xff", Tokens: 1}, "Key", `pglimit: Request.Key "\xff" is not valid UTF-8: encode bytes, as hex for instance`},
		{pglimit.Request{Key: "k", Tokens: -1}, "Tokens", "pglimit: Request.Tokens is -1: it must not be negative"},
		{pglimit.Request{Key: "k", Tokens: 21}, "Tokens", "pglimit: Request.Tokens is 21: more than the burst of 20 (10/1s burst 20) could never be granted"},
		{pglimit.Request{Key: "k", Tokens: 2, Unit: -1}, "Unit", "pglimit: Request.Unit is -1: it must not be negative"},
		{pglimit.Request{Key: "k", Tokens: 2, Unit: 3}, "Unit", "pglimit: Request.Unit is 3: it must not be larger than Tokens, which is 2"},
		{pglimit.Request{Key: "k", Tokens: 1, Durability: 7}, "Durability", "pglimit: Request.Durability is 7: it must be Relaxed or Durable"},
		{pglimit.Request{Key: "k", Tokens: 1, Durability: -1}, "Durability", "pglimit: Request.Durability is -1: it must be Relaxed or Durable"},
	} {
		strategy := &fake{}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.OnError = pglimit.FailOpen })
		good := pglimit.Request{Limiter: "api", Key: "k", Limit: limiter.Limit(), Tokens: 1, Unit: 1}
		decisions, err := limiter.DoEach(t.Context(), good, good, test.bad, good)
		var bad *pglimit.RequestError
		if !errors.As(err, &bad) || bad.Field != test.field || err.Error() != "request 2: "+test.says || decisions != nil {
			t.Errorf("%v, %v\nwant request 2: %s", decisions, err, test.says)
		}
		if stats := limiter.Stats(); len(strategy.taken) > 0 || stats.Allowed.Total()+stats.Denied.Total()+stats.Failed.Total() > 0 {
			t.Errorf("sent %v: %+v", strategy.taken, stats)
		}
	}
}

func TestTakeOfNothingIsNothing(t *testing.T) {
	t.Parallel()
	strategy := &fake{take: fail(errDown)}
	limiter := newLimiter(t, strategy, nil)
	if decisions, err := limiter.DoEach(t.Context()); decisions != nil || err != nil || len(strategy.taken) > 0 {
		t.Errorf("%v, %v, %d calls", decisions, err, len(strategy.taken))
	}
}

// A transaction that has failed decides nothing more: no request is asked about again.
func TestTakeInATransaction(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, fmt.Errorf("%w: a bad row", pglimit.ErrNothingTaken), errDown} {
		strategy := &fake{take: grantAll}
		if fails != nil {
			strategy.take = fail(fails)
		}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) {
			c.Combine.Off, c.Memory.Off, c.Breaker.Off, c.OnError = false, false, false, pglimit.FailOpen
		})
		decisions, err := limiter.On(pglimit.InTx(pglimitTx{})).DoEach(t.Context(), wants(t, "a:1 b:2 a:3")...)
		if len(strategy.taken) != 1 || strategy.asked(0) != "a:1 b:2 a:3" || strategy.taken[0][0].Impatient {
			t.Errorf("%d calls, %v", len(strategy.taken), strategy.taken)
		}
		if fails == nil {
			if got := granted(decisions); err != nil || got != "1/0 2/0 3/0" {
				t.Errorf("%s, %v", got, err)
			}
			continue
		}
		if got := granted(decisions); got != "-/0 -/0 -/0" || !errors.Is(err, fails) || strings.Count(err.Error(), "request ") != 3 {
			t.Errorf("%s, %v", got, err)
		}
	}
}

func TestTheDurabilityOfATakeIsTheStronger(t *testing.T) {
	t.Parallel()
	for _, own := range []pglimit.Durability{pglimit.Relaxed, pglimit.Durable} {
		strategy := &fake{}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Durability = own })
		_, err := limiter.DoEach(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 1, Durability: pglimit.Durable})
		if err != nil || strategy.taken[0][0].Durability != own || strategy.taken[0][1].Durability != pglimit.Durable {
			t.Errorf("%v: %+v, %v", own, strategy.taken, err)
		}
	}
}

// Once a request of a key has to be sent, those behind it are sent behind it, whatever of them
// this process could have answered.
func TestTakeKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // what the memory knows
		strategy := &fake{take: buckets(map[string]int64{"a": 3, "b": 9})}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { c.Memory.Off = false })
		if d, err := limiter.AllowN(t.Context(), "a", 5); err != nil || d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		decisions, err := limiter.DoEach(t.Context(), wants(t, "a:5 a:1 b:1 a:5")...)
		if err != nil || granted(decisions) != "-/3 1/2 1/8 -/2" || strategy.asked(1) != "a:1 b:1 a:5" || decisions[0].Source != pglimit.FromMemory || decisions[3].Source != pglimit.FromDatabase {
			t.Errorf("%+v, %v, asked %s", decisions, err, strategy.asked(1))
		}
	})
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) { // what is leased
		b := newStore()
		limiter := newLimiter(t, b, func(c *pglimit.Config) { change(c); c.Leases.On, c.Limit = true, perHour(1000) })
		load(t, limiter, time.Millisecond, 100*time.Millisecond)
		if setAside(limiter) == 0 {
			t.Fatal("there is no lease")
		}
		decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 a:300 a:1")...)
		if err != nil || granted(decisions[1:]) != "300/599 1/598" || b.asked(len(b.taken)-1) != "a:300 a:1" {
			t.Errorf("%+v, %v, asked %s", decisions, err, b.asked(len(b.taken)-1))
		}
		for i, source := range []pglimit.Source{pglimit.FromLease, pglimit.FromDatabase, pglimit.FromDatabase} {
			if decisions[i].Source != source {
				t.Errorf("%d: %v", i, decisions[i].Source)
			}
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) { // what becomes busy by the Take itself
		b := newStore()
		limiter := newLimiter(t, b, func(c *pglimit.Config) { change(c); c.Leases.On, c.Limit = true, perHour(1000) })
		decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 a:1 a:1 a:1 a:1 a:1 a:1")...)
		if got := granted(decisions); err != nil || got != "1/999 1/998 1/997 1/996 1/995 1/994 1/993" {
			t.Errorf("%s, %v", got, err)
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A bucket that is to blame fails its own request.
func TestOneRequestsFaultIsItsOwn(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		errRow := fmt.Errorf("%w: a bad row", pglimit.ErrNothingTaken)
		there := map[string]int64{"a": 3, "b": 20, "c": 7}
		strategy := &fake{take: func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
			if slices.ContainsFunc(requests, func(r rate.Request) bool { return r.Key == "bad" }) {
				return nil, errRow
			}
			return buckets(there)(ctx, requests)
		}}
		limiter := newLimiter(t, strategy, change)
		ask := wants(t, "a:2 bad:1 a:2 c:7 bad:2")
		decisions, err := limiter.DoEach(t.Context(), ask...)
		if got := granted(decisions); got != "2/1 -/0 -/1 7/0 -/0" || decisions[1] != (pglimit.Decision{}) {
			t.Errorf("%s", got)
		}
		if !errors.Is(err, errRow) || err.Error() != fmt.Sprintf("request 1: %v\nrequest 4: %v", errRow, errRow) {
			t.Error(err)
		}
		if stats := limiter.Stats(); stats.Failed[pglimit.CauseRefused] != 2 || stats.Failed.Total() != 2 || decided(stats) != 3 {
			t.Errorf("%+v", stats)
		}
		// And OnError is asked of it alone.
		onError := asked{answer: pglimit.FailOpen}
		limiter = newLimiter(t, strategy, func(c *pglimit.Config) { change(c); c.OnError = onError.onError })
		decisions, err = limiter.DoEach(t.Context(), wants(t, "bad:4/2 b:1 bad:3")...)
		if got := granted(decisions); err != nil || got != "4/0 1/19 3/0" || decisions[0].Source != pglimit.FromFallback || decisions[1].Source != pglimit.FromDatabase {
			t.Errorf("%s, %v", got, err)
		}
		if len(onError.requests) != 2 || onError.requests[0].Key != "bad" || onError.requests[0].Tokens != 4 || onError.requests[0].Unit != 2 || onError.requests[1].Tokens != 3 || !errors.Is(onError.errs[0], errRow) {
			t.Errorf("%+v", onError)
		}
	})
}

// Where there is no room for all of its requests, none is asked about: each of them waits.
func TestTakeOfMoreThanMayWait(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, change func(*pglimit.Config)) {
		strategy := &fake{take: grantAll}
		limiter := newLimiter(t, strategy, func(c *pglimit.Config) { change(c); c.MaxWaiting = 2 })
		decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 b:1 c:1 d:1")...)
		if got := granted(decisions); got != "-/0 -/0 -/0 -/0" || !errors.Is(err, pglimit.ErrOverloaded) || strings.Count(err.Error(), "request ") != 4 || len(strategy.taken) > 0 {
			t.Errorf("%s, %v", got, err)
		}
		if decisions, err := limiter.DoEach(t.Context(), wants(t, "a:1 b:1")...); err != nil || granted(decisions) != "1/0 1/0" {
			t.Errorf("when there is room again: %v, %v", decisions, err)
		}
		if stats := limiter.Stats(); stats.Waiting != 0 || stats.Failed[pglimit.CauseOverloaded] != 4 {
			t.Errorf("%+v", stats)
		}
	})
}

// trips are what the strategy was asked, with a "!" behind impatient requests.
func (f *fake) trips() (trips []string) {
	for i := range f.taken {
		trip := f.asked(i)
		if f.taken[i][0].Impatient {
			trip += "!"
		}
		trips = append(trips, trip)
	}
	return trips
}

// Without combining, a request waits for its row from the beginning. Several do not, as a call
// for several rows never waits: each asks alone, and those whose rows are held wait last.
func TestAHeldRowWithoutCombining(t *testing.T) {
	t.Parallel()
	errLocked := fmt.Errorf("%w, %w", pglimit.ErrLocked, pglimit.ErrNothingTaken)
	s := &fake{}
	s.take = func(ctx context.Context, requests []rate.Request) ([]pglimit.Decision, error) {
		if (requests[0].Impatient || len(requests) > 1) && requests[0].Key == "a" {
			return nil, errLocked
		}
		return grantAll(ctx, requests)
	}
	guarded := newLimiter(t, s, func(c *pglimit.Config) { c.Breaker.Off = false })
	for _, test := range []struct {
		limiter *pglimit.Limiter
		keys    []string
		want    []string
	}{
		{guarded, []string{"a"}, []string{"a:1"}},
		{guarded, []string{"b"}, []string{"b:1"}},
		{guarded, []string{"a", "b"}, []string{"a:1 b:1", "a:1!", "b:1!", "a:1"}},
		{newLimiter(t, s, nil), []string{"a"}, []string{"a:1"}},
	} {
		s.taken = nil
		var requests []pglimit.Request
		for _, key := range test.keys {
			requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
		}
		decisions, err := test.limiter.DoEach(t.Context(), requests...)
		if err != nil || slices.ContainsFunc(decisions, func(d pglimit.Decision) bool { return !d.Allowed }) {
			t.Errorf("%q: %+v, %v", test.keys, decisions, err)
		}
		if got := s.trips(); !slices.Equal(got, test.want) {
			t.Errorf("%q: asked %q, want %q", test.keys, got, test.want)
		}
	}
}
