package limits_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/limits"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const answer = `{"stamp": "[5, 1.5, null]", "version": 5, "now": 1700000000.5, "rules": [
	{"id": 1, "limiter": "api", "key": null, "prefix": null, "action": "enforce", "limit": "100/1m burst 20", "max_wait": "50%", "note": "default", "expires": null},
	{"id": 2, "limiter": "api", "key": "user:42", "prefix": null, "action": "deny", "limit": null, "max_wait": null, "note": "ticket 7", "expires": 1700000060.000001},
	{"id": 3, "limiter": "api", "key": null, "prefix": "org:", "action": "allow", "limit": null, "max_wait": null, "note": "ours", "expires": null},
	{"id": 4, "limiter": "api", "key": null, "prefix": "org:7", "action": "enforce", "limit": "5/s", "max_wait": "90s", "note": "plan", "expires": null},
	{"id": 5, "limiter": "api", "key": null, "prefix": "ü", "action": "observe", "limit": "1/s", "max_wait": null, "note": "trial", "expires": null}
]}`

func parse(t *testing.T, text string, before *limits.Set) *limits.Set {
	t.Helper()
	set, err := limits.Parse(text, before)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func ids(live, observed *rate.LimitRule) (of [2]int64) {
	for i, r := range []*rate.LimitRule{live, observed} {
		if r != nil {
			of[i] = r.ID
		}
	}
	return of
}

func TestParse(t *testing.T) {
	t.Parallel()
	set := parse(t, answer, nil)
	if set.Stamp != "[5, 1.5, null]" || set.Version != 5 || set.Rules != 5 || !set.Observes {
		t.Errorf("%+v", set)
	}
	if now := set.Now(); now.Before(time.UnixMilli(1700000000500)) || now.Location() != time.UTC {
		t.Error(now)
	}
	live, _ := set.Find("api", "someone", false)
	if want := (&rate.LimitRule{ID: 1, Limiter: "api", Limit: rate.PerMinute(100).WithBurst(20), MaxWait: 30 * time.Second, Note: "default"}); !live.Equal(want) {
		t.Errorf("%+v", live)
	}
	live, _ = set.Find("api", "user:42", true)
	if want := (&rate.LimitRule{ID: 2, Limiter: "api", Key: "user:42", Action: rate.ActionDeny, Note: "ticket 7", Expires: time.UnixMicro(1700000060000001)}); !live.Equal(want) {
		t.Errorf("%+v", live)
	}
	if live, _ = set.Find("api", "org:77", true); live.MaxWait != 90*time.Second {
		t.Errorf("%+v", live)
	}
	if empty := parse(t, `{"stamp": "x", "version": 6, "now": 1, "rules": []}`, set); empty.Rules != 0 || empty.Observes || ids(empty.Find("api", "user:42", false)) != [2]int64{} {
		t.Errorf("%+v", empty)
	}
}

// A row that is not understood is a rule that says so, and the others are read. An answer that is not understood is an
// error.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		old, new, key string
		row           int64 // 0: the whole answer
		want          string
	}{
		{`"enforce"`, `"forbid"`, "someone", 1, `the action is "forbid"`},
		{`"5/s"`, `"5"`, "org:77", 4, `limit "5": it must be tokens/period`},
		{`"50%"`, `"0%"`, "someone", 1, `the longest wait is "0%"`},
		{`"90s"`, `"soon"`, "org:77", 4, `the longest wait is "soon"`},
		{`"90s"`, `"month"`, "org:77", 4, `the longest wait is "month"`},
		{`1700000060.000001`, `1e9`, "user:42", 2, "cannot read the time"},
		{`1700000000.5`, `1e9`, "", 0, "1e9"},
		{`"version": 5`, `"version": "5"`, "", 0, "cannot read the table pglimit.limits"},
	} {
		set, err := limits.Parse(strings.Replace(answer, test.old, test.new, 1), nil)
		if test.row == 0 {
			if set != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", test.new, err)
			}
			continue
		}
		if err != nil || set.Rules != 5 || len(set.Unreadable) != 1 {
			t.Errorf("%s: %+v, %v", test.new, set, err)
			continue
		}
		if r, _ := set.Find("api", test.key, false); r == nil || r.ID != test.row || r != set.Unreadable[0] || !strings.Contains(r.Unreadable, test.want) || r.Limit != (rate.Limit{}) {
			t.Errorf("%s: %+v", test.new, r)
		}
	}
}

// A rule that expires lies over the permanent one for the same keys, whichever comes first, and ends also while the
// table cannot be read.
func TestATemporaryRuleLiesOverThePermanentOne(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(-time.Second)
	for _, r := range []rate.LimitRule{{Limiter: "api", Key: "k"}, {Limiter: "api", Prefix: "k"}, {Limiter: "api"}, {Limiter: "api", Action: rate.ActionOff}, {Action: rate.ActionOff}} {
		permanent, temporary := r, r
		permanent.ID, temporary.ID, temporary.Expires = 1, 2, soon
		for _, rules := range [][]rate.LimitRule{{permanent, temporary}, {temporary, permanent}} {
			set := limits.New(nil, slices.Clone(rules))
			if got := ids(set.Find("api", "k", false)); got[0] != 2 {
				t.Errorf("%+v: %v", rules, got)
			}
			left := set.Expire()
			if got := ids(left.Find("api", "k", false)); got[0] != 1 || left.Rules != 1 {
				t.Errorf("%+v, when it has ended: %v", rules, got)
			}
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	all := rate.LimitRule{ID: 9, Action: rate.ActionOff}
	rules := []rate.LimitRule{
		{ID: 1, Limiter: "api"}, {ID: 2, Limiter: "api", Prefix: "a"}, {ID: 3, Limiter: "api", Prefix: "abc"}, {ID: 4, Limiter: "api", Key: "abc"},
		{ID: 5, Limiter: "api", Action: rate.ActionObserve}, {ID: 6, Limiter: "api", Prefix: "ab", Action: rate.ActionObserve},
		{ID: 7, Limiter: "off", Action: rate.ActionOff}, {ID: 8, Limiter: "off", Key: "abc"}, {ID: 10, Limiter: "banned", Action: rate.ActionDeny},
	}
	set, off := limits.New(nil, rules), limits.New(nil, append([]rate.LimitRule{all}, rules...))
	for _, test := range []struct {
		limiter, key string
		own          bool
		want         [2]int64
	}{
		{"api", "abc", true, [2]int64{4, 6}}, {"api", "abcd", true, [2]int64{3, 6}}, {"api", "ab", false, [2]int64{2, 6}}, {"api", "a", true, [2]int64{2, 5}},
		{"api", "b", false, [2]int64{1, 5}}, {"api", "b", true, [2]int64{0, 5}}, {"off", "abc", false, [2]int64{7, 0}}, {"banned", "b", true, [2]int64{10, 0}}, {"other", "abc", false, [2]int64{}},
	} {
		if got := ids(set.Find(test.limiter, test.key, test.own)); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
		if got := ids(off.Find(test.limiter, test.key, test.own)); got != [2]int64{9, test.want[1]} {
			t.Errorf("%+v, all off: %v", test, got)
		}
	}
}

// A rule that has not changed keeps its pointer, and one that has, or is back, gets another.
func TestUnchangedRulesKeepTheirIdentity(t *testing.T) {
	t.Parallel()
	first := parse(t, answer, nil)
	second := parse(t, strings.Replace(answer, `"ticket 7"`, `"ticket 8"`, 1), first)
	for key, kept := range map[string]bool{"someone": true, "user:42": false, "org:1": true, "org:7": true, "über": true} {
		a, b := first.Find("api", key, false)
		c, d := second.Find("api", key, false)
		if (a == c) != kept || b != d {
			t.Errorf("%s: %p, %p and then %p, %p", key, a, b, c, d)
		}
	}
	again := parse(t, answer, parse(t, `{"stamp": "", "version": 6, "now": 1, "rules": []}`, second))
	if a, _ := again.Find("api", "someone", false); a == nil {
		t.Error("it is not back")
	} else if b, _ := first.Find("api", "someone", false); a == b {
		t.Error("it is the same as before it was deleted")
	}
}

// A set without what has expired is read anew: the table may know better. An answer without rules is the same set, by a
// newer clock.
func TestExpiredRulesAreAskedForAgain(t *testing.T) {
	t.Parallel()
	const answer = `{"stamp": "[1]", "version": 1, "now": 100, "rules": [{"id": 1, "limiter": "api", "action": "deny", "note": "n", "expires": 50}]}`
	set := parse(t, answer, nil)
	left := set.Expire()
	if left == nil || left.Rules != 0 || left.Stamp != "" || left.Version != 1 {
		t.Fatalf("%+v", left)
	}
	same := parse(t, `{"stamp": "[1]", "now": 200}`, set)
	if same.Rules != 1 || same.Stamp != "[1]" || same.Now().Unix() != 200 {
		t.Errorf("%+v", same)
	}
}

// A rule that stays does not keep in memory the sets that came after it.
func TestRulesThatStayKeepNoOthers(t *testing.T) {
	t.Parallel()
	rules := make([]rate.LimitRule, 10_000)
	for i := range rules {
		rules[i] = rate.LimitRule{ID: int64(i), Limiter: "api", Key: fmt.Sprint(i), Limit: rate.PerSecond(1)}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	set := limits.New(nil, slices.Clone(rules))
	before := heap()
	for i := range 50 {
		rules[i].Limit = rate.PerSecond(2)
		set = limits.New(set, slices.Clone(rules))
	}
	if grown := int64(heap()) - int64(before); grown > 10<<20 {
		t.Errorf("50 changes of 10,000 rules keep %d MB", grown>>20)
	}
	runtime.KeepAlive(set)
}
