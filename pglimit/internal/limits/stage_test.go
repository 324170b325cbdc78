package limits

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// A Limiter hears of a change that touches rules which it has asked for, and of no other. Nobody who reads the rules
// waits for a change.
func TestAChangeTouchesThoseWhomItIsFor(t *testing.T) {
	t.Parallel()
	limit := rate.Limit{Tokens: 1, Period: time.Hour, Burst: 1}
	rules := []rate.LimitRule{{Limiter: "a", Limit: limit}, {Limiter: "b", Limit: limit}}
	table := Fixed(rules)
	var told []string
	stages := make(map[string]*Stage)
	for _, name := range []string{"a", "b", "c", "d"} {
		stages[name] = table.Enter(name, nil, func() { told = append(told, name) })
	}
	change := func(what string, want ...string) {
		t.Helper()
		told = nil
		table.swap(New(table.set.Load(), rules))
		if slices.Sort(told); !slices.Equal(told, want) {
			t.Errorf("%s: told %v, want %v", what, told, want)
		}
		table.mu.Lock() // as if another change were under way
		defer table.mu.Unlock()
		if err := table.Await(t.Context()); err != nil {
			t.Error(err)
		}
		for name, s := range stages {
			of := name
			if name == "c" {
				of = "a" // it asks for the bucket of another
			}
			s.Apply(&rate.Request{Limiter: of, Key: "k"})
		}
	}
	change("nothing yet")
	change("nothing has changed", "c")
	rules[0].Note = "another"
	change("a", "a", "c")
	rules = append(rules, rate.LimitRule{Limiter: "b", Key: "other", Limit: limit})
	change("one more of b", "b", "c")
	rules = append(rules, rate.LimitRule{Limiter: "d", Action: rate.ActionObserve, Limit: limit})
	change("the first of d", "c", "d")
	rules = rules[:2]
	change("one less of b and d", "b", "c", "d")
}

// A process that was stopped for so long that the others have gone on without it does not go on with its old count.
func TestAnOldCountDoesNotHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(nil, Config{CountInstances: true})
		s := &Stage{table: table}
		s.live.Store(4)
		for _, test := range []struct {
			after time.Duration
			live  int
		}{{0, 4}, {stillLive, 4}, {1, 0}, {time.Hour, 0}} {
			time.Sleep(test.after)
			if live, counts := s.Live(); live != test.live || !counts {
				t.Errorf("%v later: %d, %t", test.after, live, counts)
			}
		}
		table.tried.Store(int64(time.Since(table.start)))
		if live, _ := s.Live(); live != 4 {
			t.Errorf("it tries again: %d", live)
		}
	})
}

// lives is a session that says which instances live.
type lives struct {
	rate.Session
	text string
}

func (l lives) Row(_ context.Context, _ string, _ []any, into ...any) error {
	*into[0].(**string) = &l.text
	return nil
}

// An instance that the others do not count yet takes no share of the limit.
func TestAnInstanceThatIsNotCountedTakesNoShare(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"[3, true]": 3, "[3, false]": 0, "[null, true]": 0} {
		table := NewTable(lives{text: `{"turn": 1, "instances": {"1": ` + text + `}}`}, Config{CountInstances: true})
		s := &Stage{table: table, id: "1", limiter: "test"}
		table.users[s] = true
		table.sayOnce(t.Context())
		if live := s.live.Load(); live != want {
			t.Errorf("%s: it takes its share of %d, want %d", text, live, want)
		}
	}
}

// deletes counts the statements of an instance that goes.
type deletes struct {
	rate.Session
	n int
}

func (d *deletes) Exec(context.Context, string, ...any) (int64, error) {
	d.n++
	return 1, nil
}

// An instance that was said to live says once that it is gone, however often its Limiter is closed.
func TestAnInstanceGoesOnce(t *testing.T) {
	t.Parallel()
	session := new(deletes)
	s := &Stage{table: NewTable(session, Config{}), id: "1"}
	for _, want := range []int{0, 1, 1} {
		if s.Leave(t.Context()); session.n != want {
			t.Errorf("deleted %d times, want %d", session.n, want)
		}
		if want == 0 { // nobody has heard of it before
			s.said.Store(1)
		}
	}
}
