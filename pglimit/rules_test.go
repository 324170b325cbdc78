package pglimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// rules of limiter "api", in any order.
func rules(of ...pglimit.LimitRule) *pglimit.Limits {
	for i := range of {
		of[i].ID, of[i].Note = int64(i+1), "ticket 7"
		if of[i].Limiter == "" && of[i].Action != pglimit.ActionOff {
			of[i].Limiter = "api"
		}
	}
	return pglimit.FixedLimits(of...)
}

func ruled(t *testing.T, limits *pglimit.Limits, change func(*pglimit.Config)) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimittest.New(pglimittest.Memory(), config(func(c *pglimit.Config) {
		c.Limit, c.Limits = pglimit.PerHour(100), limits
		if change != nil {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// roundTrips is how often Postgres was asked.
func roundTrips(l *pglimit.Limiter) int64 { return l.Stats().RoundTrips }

var (
	hourly = pglimit.PerHour
	allow  = pglimit.LimitRule{Action: pglimit.ActionAllow, Key: "us"}
	deny   = pglimit.LimitRule{Action: pglimit.ActionDeny, Prefix: "bot:"}
)

// The rule for a key, that for the longest prefix, the request's own limit, the rule for all keys, Config.Limit.
func TestWhichRuleHolds(t *testing.T) {
	t.Parallel()
	limiter := ruled(t, rules(
		pglimit.LimitRule{Prefix: "org:", Limit: hourly(13)}, pglimit.LimitRule{Limit: hourly(12)}, pglimit.LimitRule{Prefix: "org:7:", Limit: hourly(14)},
		pglimit.LimitRule{Key: "org:7:eve", Limit: hourly(15)}, pglimit.LimitRule{Limiter: "login", Key: "org:7", Limit: hourly(16)}, pglimit.LimitRule{Limiter: "login", Prefix: "of", Action: pglimit.ActionDeny},
		pglimit.LimitRule{Limiter: "banned", Action: pglimit.ActionDeny},
	), nil)
	own := hourly(50)
	for _, test := range []struct {
		limiter, key  string
		own, want     pglimit.Limit
		rule, refuses int64
	}{
		{key: "org:7:eve", want: hourly(15), rule: 4},
		{key: "org:7:eve", own: own, want: hourly(15), rule: 4},
		{key: "org:7:eves", own: own, want: hourly(14), rule: 3},
		{key: "org:7:", want: hourly(14), rule: 3},
		{key: "org:7", want: hourly(13), rule: 1},
		{key: "org", want: hourly(12), rule: 2},
		{key: "ORG:7", want: hourly(12), rule: 2},
		{key: "org", own: own, want: own},
		{limiter: "login", key: "org:7", own: own, want: hourly(16), rule: 5},
		{limiter: "login", key: "org:7:eve", want: hourly(100)},
		{limiter: "login", key: "office", own: own, want: own, rule: 6},
		{limiter: "banned", key: "k", own: own, want: own, rule: 7}, // for all keys, and denies all the same
		{limiter: "unknown", key: "k", want: hourly(100)},
	} {
		name := fmt.Sprintf("%s %s under %v", test.limiter, test.key, test.own)
		r := pglimit.Request{Limiter: test.limiter, Key: test.key, Limit: test.own, Tokens: 1}
		d, err := limiter.Do(t.Context(), r)
		if err != nil || d.Limit != test.want || (d.Rule == nil) != (test.rule == 0) || d.Rule != nil && d.Rule.ID != test.rule || d.Allowed == (test.rule > 5) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		r.Tokens = 0 // a peek has the same
		if d, err := limiter.Do(t.Context(), r); err != nil || d.Limit != test.want || (d.Rule == nil) != (test.rule == 0) || d.Allowed == (test.rule > 5) {
			t.Errorf("peek %s: %+v, %v", name, d, err)
		}
		r.Tokens = 1
		if group, err := limiter.DoAll(t.Context(), r); err != nil || group.Decisions[0].Limit != test.want || group.Allowed == (test.rule > 5) {
			t.Errorf("group %s: %+v, %v", name, group, err)
		}
		if test.rule > 5 {
			continue
		}
		r.MaxWait = time.Millisecond
		if d, err := limiter.Do(t.Context(), r); err != nil && !errors.Is(err, pglimit.ErrWaitTooLong) || d.Limit != test.want || (d.Rule == nil) != (test.rule == 0) {
			t.Errorf("wait %s: %+v, %v", name, d, err)
		}
		if test.limiter != "" || test.own != (pglimit.Limit{}) {
			continue
		}
		if r, err := limiter.Reserve(t.Context(), test.key); err != nil || r.Decision().Limit != test.want || r.Decision().Rule == nil || r.Decision().Rule.ID != test.rule {
			t.Errorf("reserve %s: %+v, %v", name, r.Decision(), err)
		}
	}
}

// allow, deny and off need no round trip, whoever asks, and charge nothing, so that there is nothing to give back.
func TestRulesThatNeedNoDecision(t *testing.T) {
	t.Parallel()
	at, ends := time.Now(), time.Now().Add(time.Minute)
	for name, limits := range map[string]*pglimit.Limits{
		"of keys": rules(allow, deny, pglimit.LimitRule{Key: "until", Action: pglimit.ActionDeny, Expires: ends}),
		"off":     rules(deny, pglimit.LimitRule{Limiter: "api", Action: pglimit.ActionOff}),
		"all off": rules(deny, pglimit.LimitRule{Action: pglimit.ActionOff}),
	} {
		limiter := ruled(t, limits, nil)
		switchedOff := name != "of keys"
		asks := map[string]func(key string, n int64) (pglimit.Decision, error){
			"allow": func(key string, n int64) (pglimit.Decision, error) { return limiter.AllowN(t.Context(), key, n) },
			"peek":  func(key string, _ int64) (pglimit.Decision, error) { return limiter.Peek(t.Context(), key) },
			"with an ID": func(key string, n int64) (pglimit.Decision, error) {
				return limiter.Do(t.Context(), pglimit.Request{Key: key, Tokens: n, ID: "1"})
			},
			"reserve": func(key string, n int64) (pglimit.Decision, error) {
				r, err := limiter.ReserveN(t.Context(), key, n)
				if err == nil {
					err = r.Cancel(t.Context())
				}
				return r.Decision(), err
			},
			"wait": func(key string, n int64) (pglimit.Decision, error) {
				d, err := limiter.Do(t.Context(), pglimit.Request{Key: key, Tokens: n, MaxWait: time.Second})
				if errors.Is(err, pglimit.ErrWaitTooLong) {
					err = nil
				}
				return d, err
			},
			"each": func(key string, n int64) (pglimit.Decision, error) {
				all, err := limiter.DoEach(t.Context(), pglimit.Request{Key: key, Tokens: n}, pglimit.Request{Key: key, Tokens: n})
				return all[1], err
			},
			"all": func(key string, n int64) (pglimit.Decision, error) {
				all, err := limiter.DoAll(t.Context(), pglimit.Request{Key: key, Tokens: n})
				return all.Decisions[0], err
			},
		}
		for way, ask := range asks {
			for key, allowed := range map[string]bool{"us": true, "bot:1": switchedOff, "until": switchedOff} {
				const size = 107 // more than the burst
				d, err := ask(key, size)
				granted := int64(size)
				if way == "peek" || !allowed {
					granted = 0
				}
				if err != nil || d.Allowed != allowed || d.Granted != granted || d.Source != pglimit.FromRule || d.Rule == nil || d.At.Before(at.Add(-time.Second)) || d.Delay != 0 {
					t.Errorf("%s, %s %s: %+v, %v", name, way, key, d, err)
				}
				if left := ends.Sub(d.At); !allowed && (key == "until" && d.RetryAfter < left || key != "until" && d.RetryAfter != time.Hour) || allowed && d.RetryAfter != 0 {
					t.Errorf("%s, %s %s: retry after %v", name, way, key, d.RetryAfter)
				}
				for _, cost := range []int64{0, 108} {
					if charged, err := limiter.Settle(t.Context(), d, cost); d.Granted > 0 && (err != nil || charged.Granted != cost) {
						t.Errorf("settle: %+v, %v", charged, err)
					}
				}
				if err := limiter.Refund(t.Context(), d, 1); d.Granted > 0 && err != nil {
					t.Errorf("refund: %v", err)
				}
			}
		}
		stats := limiter.Stats()
		if roundTrips(limiter) != 0 || stats.GrantedTokens != 0 || stats.Allowed[pglimit.FromRule]+stats.Denied[pglimit.FromRule] != stats.Allowed.Total()+stats.Denied.Total() {
			t.Errorf("%s: %+v", name, stats)
		}
		want := [...]int64{0, 0, 8, 16, 0}
		if switchedOff {
			want = [...]int64{0, 0, 0, 0, 24}
		}
		if stats.Ruled != want {
			t.Errorf("%s: ruled %v, want %v", name, stats.Ruled, want)
		}
	}
}

// What a rule grants is not charged with its group; a member that a rule denies denies the group unasked.
func TestRulesOfAGroup(t *testing.T) {
	t.Parallel()
	var told []string
	limiter := ruled(t, rules(allow, deny, pglimit.LimitRule{Key: "two", Limit: hourly(2)}), func(c *pglimit.Config) {
		c.OnDecision = func(_ context.Context, r pglimit.Request, d pglimit.Decision, _ error) {
			told = append(told, fmt.Sprint(r.Key, " ", d.Granted))
		}
	})
	all := func(keys ...string) pglimit.Group {
		t.Helper()
		var requests []pglimit.Request
		for _, key := range keys {
			requests = append(requests, pglimit.Request{Key: key, Tokens: 1})
		}
		group, err := limiter.DoAll(t.Context(), requests...)
		if err != nil || len(group.Decisions) != len(keys) {
			t.Fatal(group, err)
		}
		for i, d := range group.Decisions {
			if d.Key != keys[i] || d.Limiter != "api" || group.Allowed != (d.Granted == 1) || d.Limit == (pglimit.Limit{}) {
				t.Errorf("%d of %v: %+v", i, keys, d)
			}
		}
		return group
	}
	for i, want := range []bool{true, true, false} {
		if group := all("us", "two"); group.Allowed != want || !group.Decisions[0].Allowed || group.Decisions[1].Allowed != want || roundTrips(limiter) != int64(i+1) {
			t.Errorf("%d: %+v", i, group)
		}
	}
	if group := all("free", "bot:1", "us"); group.Allowed || group.RetryAfter != time.Hour || !group.Decisions[0].Allowed || group.Decisions[1].Allowed || roundTrips(limiter) != 3 {
		t.Errorf("%+v", group)
	}
	if d, err := limiter.Peek(t.Context(), "free"); err != nil || d.Remaining != 100 {
		t.Errorf("%+v, %v", d, err)
	}
	if fmt.Sprint(told) != "[two 1 us 1 two 1 us 1 two 0 us 0 free 0 bot:1 0 us 0 free 0]" {
		t.Error(told)
	}
}

// Of several requests, each has its own rule, and those without one are asked in one call.
func TestRulesOfEach(t *testing.T) {
	t.Parallel()
	limiter := ruled(t, rules(allow, deny, pglimit.LimitRule{Key: "two", Limit: hourly(2)}), nil)
	decisions, err := limiter.DoEach(t.Context(),
		pglimit.Request{Key: "us", Tokens: 3}, pglimit.Request{Key: "two", Tokens: 2}, pglimit.Request{Key: "bot:1", Tokens: 1}, pglimit.Request{Key: "free", Tokens: 1}, pglimit.Request{Key: "bot:2", Tokens: 1})
	if err != nil || granted(decisions) != "3/100 2/0 -/0 1/99 -/0" || decisions[3].Rule != nil {
		t.Errorf("%s, %v", granted(decisions), err)
	}
}

// A rule that is only observed counts in a bucket of its own and denies nothing, whatever the live one decides.
func TestObserved(t *testing.T) {
	t.Parallel()
	observe := pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: hourly(2)}
	limiter := ruled(t, rules(pglimit.LimitRule{Limit: hourly(4)}, observe, deny, allow), nil)
	for i := range int64(5) {
		d, err := limiter.Allow(t.Context(), "k")
		if err != nil || d.Allowed != (i < 4) || d.Rule.ID != 1 || d.Observed == nil || d.Observed.Allowed != (i < 2) || d.Observed.Rule.ID != 2 || d.Observed.Limiter != "api (observed)" || d.Observed.Limit != hourly(2) {
			t.Errorf("%d: %+v, observed %+v, %v", i, d, d.Observed, err)
		}
	}
	if d, err := limiter.Peek(t.Context(), "k"); err != nil || d.Observed != nil {
		t.Errorf("a peek: %+v, %v", d, err)
	}
	if d, err := limiter.AllowN(t.Context(), "big", 3); err != nil || !d.Allowed || d.Observed.Allowed { // it could never be granted
		t.Errorf("%+v, %v", d, err)
	}
	for key, allowed := range map[string]bool{"us": true, "bot:1": false} {
		if d, err := limiter.Allow(t.Context(), key); err != nil || d.Allowed != allowed || d.Observed != nil { // it needs no round trip
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	all, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "one", Tokens: 1}, pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "us", Tokens: 1})
	if err != nil || all.Allowed || !all.Decisions[0].Observed.Allowed || all.Decisions[1].Observed.Allowed || all.Decisions[2].Observed != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "waits", Tokens: 4, MaxWait: time.Second}); err != nil || d.Observed == nil || d.Observed.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
	if r, err := limiter.ReserveN(t.Context(), "reserves", 4); err != nil || r.Decision().Observed == nil || r.Decision().Observed.Allowed {
		t.Errorf("%+v, %v", r, err)
	}
	if stats := limiter.Stats(); stats.ObservedDenied != 7 || stats.Ruled[pglimit.ActionObserve] != 10 || stats.GrantedTokens != 0 {
		t.Errorf("%+v", stats)
	}
	if d, err := ruled(t, rules(observe), nil).Allow(t.Context(), "k"); err != nil || d.Rule != nil || d.Limit != hourly(100) || !d.Observed.Allowed || d.Observed.Remaining != 1 {
		t.Errorf("without a live rule: %+v, %v", d, err)
	}
}

// What a rule would decide that is only observed is what it decides when it is enforced: whoever asks, and in which
// way.
func TestObservedIsWhatWouldBeDecided(t *testing.T) {
	t.Parallel()
	type calls = func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision
	one := func(t *testing.T, d pglimit.Decision, err error) []pglimit.Decision {
		t.Helper()
		if err != nil && !errors.Is(err, pglimit.ErrWaitTooLong) {
			t.Error(err)
		}
		return []pglimit.Decision{d}
	}
	do := func(r pglimit.Request) calls {
		return func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
			t.Helper()
			d, err := l.Do(t.Context(), r)
			return one(t, d, err)
		}
	}
	allow := func(n int64) calls { return do(pglimit.Request{Key: "k", Tokens: n}) }
	settle := func(n, cost int64) calls {
		return func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
			t.Helper()
			d := allow(n)(t, l)
			if _, err := l.Settle(t.Context(), d[0], cost); err != nil {
				t.Error(err)
			}
			return d
		}
	}
	refund := func(n, unused int64) calls {
		return func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
			t.Helper()
			d := allow(n)(t, l)
			if err := l.Refund(t.Context(), d[0], unused); err != nil {
				t.Error(err)
			}
			return d
		}
	}
	givesUp := func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		if _, err := l.Do(ctx, pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Hour}); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		return nil
	}
	group := func(tokens ...int64) calls {
		return func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
			t.Helper()
			var requests []pglimit.Request
			for i, n := range tokens {
				requests = append(requests, pglimit.Request{Key: fmt.Sprint("k", i), Tokens: n})
			}
			g, err := l.DoAll(t.Context(), requests...)
			if err != nil {
				t.Error(err)
			}
			return g.Decisions
		}
	}
	for name, test := range map[string]struct {
		change func(*pglimit.Config)
		calls  []calls
	}{
		"an ID":      {nil, []calls{do(pglimit.Request{Key: "k", Tokens: 3, ID: "1"}), do(pglimit.Request{Key: "k", Tokens: 3, ID: "1"}), allow(2), do(pglimit.Request{Key: "k", Tokens: 3, ID: "1"}), allow(1)}},
		"units":      {nil, []calls{do(pglimit.Request{Key: "k", Tokens: 9, Unit: 2}), allow(1), allow(1)}},
		"Adjust":     {func(c *pglimit.Config) { c.Adjust = func() float64 { return .5 } }, []calls{allow(2), allow(1), allow(3), group(2, 3), group(2, 1)}},
		"groups":     {nil, []calls{group(2, 2), group(4, 1), group(1, 3), group(3, 1), group(1, 1)}},
		"reserved":   {func(c *pglimit.Config) { c.MaxAhead = time.Hour }, []calls{reserve(5, false), reserve(3, false), reserve(4, false), reserve(1, true), allow(1), reserve(2, false)}},
		"given up":   {func(c *pglimit.Config) { c.Limit = hourly(5) }, []calls{allow(5), givesUp, do(pglimit.Request{Key: "k", Tokens: 1, MaxWait: 11 * time.Minute})}},
		"refunded":   {nil, []calls{refund(3, 2), allow(4), allow(1)}},
		"waits":      {nil, []calls{allow(5), do(pglimit.Request{Key: "k", Tokens: 1, MaxWait: 11 * time.Minute}), do(pglimit.Request{Key: "k", Tokens: 1, MaxWait: 12 * time.Minute}), do(pglimit.Request{Key: "k", Tokens: 5, MaxWait: time.Hour}), allow(1)}},
		"given back": {nil, []calls{settle(3, 1), settle(2, 0), allow(5), allow(1)}},
		"charged":    {nil, []calls{settle(1, 4), allow(2), allow(1), allow(1)}},
		"blocks": {func(c *pglimit.Config) {
			c.Block = pglimit.Block{After: 2, Within: time.Hour, For: 3 * time.Hour, Max: 3 * time.Hour}
		}, []calls{allow(5), allow(1), allow(1), allow(1), allow(1)}},
		"leases":      {func(c *pglimit.Config) { c.Leases.On = true }, []calls{allow(1), allow(1), allow(2), allow(1), allow(1)}},
		"memory":      {func(c *pglimit.Config) { c.Memory.Off = false }, []calls{allow(5), allow(1), allow(1)}},
		"new keys":    {func(c *pglimit.Config) { c.NewKeys.Limit = hourly(9) }, []calls{allow(5), allow(1)}},
		"both in one": {func(c *pglimit.Config) { c.Combine.Off = false }, []calls{allow(4), group(1, 5), allow(2), allow(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var limiters [2]*pglimit.Limiter
				for i, action := range []pglimit.Action{pglimit.ActionObserve, pglimit.ActionEnforce} {
					memory := pglimittest.MemoryOn(time.Now)
					c := config(func(c *pglimit.Config) {
						c.Limit, c.Limits = hourly(1000), rules(pglimit.LimitRule{Action: action, Limit: hourly(5)})
						if test.change != nil {
							test.change(c)
						}
					})
					var err error
					if limiters[i], err = pglimit.New(memory.Pool(), memory, c); err != nil {
						t.Fatal(err)
					}
					defer limiters[i].Close(t.Context()) //nolint:errcheck // not what this is about
				}
				for i, call := range test.calls {
					decided, enforced := call(t, limiters[0]), call(t, limiters[1]) // which may wait
					for j, want := range enforced {
						got := decided[j].Observed
						if got == nil {
							t.Errorf("call %d: nothing is observed: %+v", i, decided[j])
						} else if got.Allowed != want.Allowed || got.Granted != want.Granted || got.Remaining != want.Remaining || got.Blocked != want.Blocked {
							t.Errorf("call %d: observed was\n%+v, decided would be\n%+v", i, *got, want)
						}
					}
				}
			})
		})
	}
}

// reserve n tokens, and perhaps cancel that.
func reserve(n int64, cancel bool) func(*testing.T, *pglimit.Limiter) []pglimit.Decision {
	return func(t *testing.T, l *pglimit.Limiter) []pglimit.Decision {
		t.Helper()
		r, err := l.ReserveN(t.Context(), "k", n)
		if err == nil && cancel {
			err = r.Cancel(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
		return []pglimit.Decision{r.Decision()}
	}
}

// What was denied under a rule is recalled without it, if the limit is the same; the decision names the rule that
// holds.
func TestADenialUnderAnotherRuleIsRecalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter, err := pglimit.New(memory.Pool(), memory, config(func(c *pglimit.Config) {
			c.Limits, c.Memory = rules(pglimit.LimitRule{Limit: hourly(1)}), pglimit.Memory{TTL: time.Hour}
		}))
		if err != nil {
			t.Fatal(err)
		}
		under, own := pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "k", Limit: hourly(1), Tokens: 1}
		_, _ = limiter.Do(t.Context(), under)
		for i, r := range []pglimit.Request{under, own, under} {
			d, err := limiter.Do(t.Context(), r)
			if err != nil || d.Allowed || d.Source != pglimit.FromMemory || (d.Rule == nil) != (r.Limit == hourly(1)) {
				t.Errorf("%d: %+v, %v", i, d, err)
			}
		}
	})
}

// Callers of Wait wait for no longer than the rule says, nor longer than they wanted to.
func TestTheLongestWaitOfARule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		limiter, err := pglimittest.New(memory, config(func(c *pglimit.Config) {
			c.MaxWait = time.Hour
			c.Limits = rules(pglimit.LimitRule{Limit: pglimit.Every(time.Second), MaxWait: 1500 * time.Millisecond}, pglimit.LimitRule{Key: "patient", Limit: pglimit.Every(time.Second)})
		}))
		if err != nil {
			t.Fatal(err)
		}
		wait := func(key string, most time.Duration, want time.Duration, tooLong bool) {
			t.Helper()
			begin := time.Now()
			d, err := limiter.Do(t.Context(), pglimit.Request{Key: key, Tokens: 1, MaxWait: most})
			if waited := time.Since(begin); errors.Is(err, pglimit.ErrWaitTooLong) != tooLong || err == nil && (!d.Allowed || d.Rule == nil) || waited < want || waited > want+want/500 {
				t.Errorf("%s: %+v, %v after %v", key, d, err, waited)
			}
		}
		_, _ = limiter.Reserve(t.Context(), "k")
		wait("k", time.Hour, time.Second, false)
		_, _ = limiter.Reserve(t.Context(), "k")
		wait("k", time.Hour, 0, true) // 2 s
		wait("k", time.Second, 0, true)
		for range 2 {
			_, _ = limiter.Reserve(t.Context(), "patient")
		}
		wait("patient", time.Second, 0, true)
		wait("patient", time.Hour, 2*time.Second, false)
	})
}

// A rule that cannot be read or kept is an error of the requests for which it holds, that names the row. No hook
// answers it, and the other rules hold.
func TestARuleThatCannotBeKept(t *testing.T) {
	t.Parallel()
	strategy := picky{pglimittest.Memory()}
	limiter := newLimiter(t, strategy, func(c *pglimit.Config) {
		c.OnError = pglimit.FailOpen
		c.Limits = rules(pglimit.LimitRule{Key: "bad", Limit: hourly(101)}, pglimit.LimitRule{Key: "good", Limit: hourly(99)}, pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: hourly(102)},
			pglimit.LimitRule{Key: "torn", Unreadable: "limit \"5\": it must be tokens/period"}, pglimit.LimitRule{Key: "good", Action: pglimit.ActionObserve, Unreadable: "too"})
	})
	var unfit *pglimit.LimitError
	for key, want := range map[string]string{"bad": "row 1 of pglimit.limits: Limit.Burst is too much", "torn": "row 4 of pglimit.limits: limit \"5\": it must be tokens/period"} {
		var torn *pglimit.RuleError
		_, err := limiter.Allow(t.Context(), key)
		if !errors.As(err, &torn) || err.Error() != "pglimit: "+want || torn.Rule.Key != key || errors.As(err, &unfit) != (key == "bad") {
			t.Errorf("%s: %v", key, err)
		}
		_, each := limiter.DoEach(t.Context(), pglimit.Request{Key: key, Tokens: 1, Limit: hourly(1)})
		_, all := limiter.DoAll(t.Context(), pglimit.Request{Key: "good", Tokens: 1}, pglimit.Request{Key: key, Tokens: 1})
		_, waited := limiter.Do(t.Context(), pglimit.Request{Key: key, Tokens: 1, MaxWait: time.Minute})
		_, reserved := limiter.Reserve(t.Context(), key)
		_, peeked := limiter.Peek(t.Context(), key)
		_, many := limiter.Do(t.Context(), pglimit.Request{Key: key, Tokens: 500, Limit: hourly(1000)}) // more than the Limiter's burst
		for i, err := range []error{each, all, waited, reserved, peeked, many} {
			if !errors.As(err, &torn) || torn.Rule.Key != key {
				t.Errorf("%s, %d: %v", key, i, err)
			}
		}
	}
	if failing := limiter.Stats().LimitsFailing; failing != 3 { // bad, torn, and the one that is not observed
		t.Errorf("%d rules fail", failing)
	}
	for _, key := range []string{"good", "other"} {
		if d, err := limiter.Allow(t.Context(), key); err != nil || !d.Allowed || d.Observed != nil {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

// picky keeps no burst of more than 100.
type picky struct{ *pglimittest.Strategy }

func (p picky) Check(r *rate.Request) error {
	if r.Limit.Burst > 100 {
		return &pglimit.LimitError{Limit: r.Limit, Field: "Burst", Why: "is too much"}
	}
	return p.Strategy.Check(r)
}

// Before the table was read for the first time, requests wait for it up to Timeout, and then OnError answers
// them. Nobody is granted anything by Config.Limit.
func TestBeforeTheLimitsWereRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := pglimittest.MemoryOn(time.Now)
		var failed []pglimit.Request
		open := func(onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)) *pglimit.Limiter {
			return newLimiter(t, memory, func(c *pglimit.Config) {
				c.Limits, c.Timeout, c.OnError = pglimit.LimitsFrom(noLimits{}, pglimit.LimitsConfig{}), time.Second, onError
			})
		}
		limiter := open(nil)
		begin := time.Now()
		_, err := limiter.Allow(t.Context(), "k")
		if !errors.Is(err, pglimit.ErrNoLimits) || !errors.Is(err, pglimit.ErrUnavailable) || time.Since(begin) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if stats := limiter.Stats(); stats.LimitsAge != 1 || stats.LimitsVersion != 0 || stats.Failed[pglimit.CauseOf(err)] != 1 || stats.Ruled != (pglimit.ByAction{}) {
			t.Errorf("%+v", stats)
		}
		_, each := limiter.DoEach(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b"})
		_, all := limiter.DoAll(t.Context(), pglimit.Request{Key: "a", Tokens: 1}, pglimit.Request{Key: "b", Tokens: 1})
		_, reserved := limiter.Reserve(t.Context(), "k")
		_, waited := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 1, MaxWait: time.Minute})
		_, inTx := limiter.On(pglimit.InTx(pglimitTx{})).Allow(t.Context(), "k")
		for i, err := range []error{each, all, reserved, waited, inTx} {
			if !errors.Is(err, pglimit.ErrNoLimits) {
				t.Errorf("%d: %v", i, err)
			}
		}
		closed := limiter.Close(t.Context())
		failing := open(func(_ context.Context, f pglimit.Failure) (pglimit.Decision, error) {
			failed = append(failed, f.Request)
			if !errors.Is(f.Err, pglimit.ErrNoLimits) {
				t.Error(f.Err)
			}
			return pglimit.FailClosed(t.Context(), f)
		})
		if d, err := failing.Allow(t.Context(), "k"); err != nil || d.Allowed || d.Source != pglimit.FromFallback || d.Rule != nil {
			t.Errorf("%+v, %v", d, err)
		}
		if err := errors.Join(closed, failing.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if len(failed) != 1 || roundTrips(limiter)+roundTrips(failing) > 0 {
			t.Errorf("failed %d, %d sent", len(failed), roundTrips(limiter)+roundTrips(failing))
		}
	})
}

// noLimits is a pool on which no answer comes.
type noLimits struct{ noDB }

func (noLimits) AcquireFunc(ctx context.Context, _ func(*pgxpool.Conn) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// More than the burst of a rule is an error, as more than that of any limit; some units of it are granted.
func TestMoreThanTheBurstOfARule(t *testing.T) {
	t.Parallel()
	limiter := ruled(t, rules(pglimit.LimitRule{Limit: hourly(4)}), nil)
	for name, ask := range map[string]func() error{
		"alone": func() error { _, err := limiter.AllowN(t.Context(), "k", 8); return err },
		"all": func() error {
			_, err := limiter.DoAll(t.Context(), pglimit.Request{Key: "k", Tokens: 1}, pglimit.Request{Key: "other", Tokens: 8})
			return err
		},
	} {
		if err := (*pglimit.RequestError)(nil); !errors.As(ask(), &err) || err.Field != "Tokens" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if d, err := limiter.Do(t.Context(), pglimit.Request{Key: "k", Tokens: 8, Unit: 3}); err != nil || d.Granted != 3 {
		t.Errorf("%+v, %v", d, err)
	}
}

// What is only observed takes no place from requests that are enforced.
func TestObservedRequestsAreNoCallers(t *testing.T) {
	t.Parallel()
	limiter := ruled(t, rules(pglimit.LimitRule{Action: pglimit.ActionObserve, Limit: hourly(2)}), func(c *pglimit.Config) { c.MaxWaiting = 1 })
	for range 3 {
		if d, err := limiter.Allow(t.Context(), "k"); err != nil || !d.Allowed || d.Observed == nil {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

// Before the table was read there is no limit to have a share of, and no more requests wait than may.
func TestFailLocalKnowsNoLimitsBeforeTheyWereRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := newLimiter(t, pglimittest.MemoryOn(time.Now), func(c *pglimit.Config) {
			c.Limits, c.Timeout, c.OnError, c.MaxWaiting = pglimit.LimitsFrom(noLimits{}, pglimit.LimitsConfig{}), time.Second, pglimit.FailLocal(1), 2
		})
		begin := time.Now()
		var waited atomic.Int64
		var callers sync.WaitGroup
		for range 5 {
			callers.Go(func() {
				if d, err := limiter.Allow(t.Context(), "k"); !errors.Is(err, pglimit.ErrNoLimits) || d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
				if time.Since(begin) > 0 {
					waited.Add(1)
				}
			})
		}
		callers.Wait()
		if waited.Load() != 2 {
			t.Errorf("%d waited", waited.Load())
		}
		if err := limiter.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
