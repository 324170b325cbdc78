package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// session keeps the last row of each slot and limiter, as the table does.
type session struct {
	rate.Session
	mu    sync.Mutex
	fails error
	sent  int
	rows  map[string]string

	totals map[string]Totals // of the last slot
}

func (s *session) Exec(_ context.Context, _ string, args ...any) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	if s.fails != nil {
		return 0, s.fails
	}
	limiters, keys, denied, granted := args[1].([]string), args[2].([]string), args[3].([]int64), args[4].([]int64)
	of := make(map[string][]string)
	for i, limiter := range limiters {
		of[limiter] = append(of[limiter], fmt.Sprint(keys[i], " -", denied[i], " +", granted[i]))
	}
	if s.rows == nil {
		s.rows, s.totals = make(map[string]string), make(map[string]Totals)
	}
	for i, limiter := range args[5].([]string) {
		s.totals[limiter] = Totals{args[7].([]int64)[i], args[6].([]int64)[i], args[8].([]int64)[i]}
	}
	for limiter, row := range of {
		slices.Sort(row)
		s.rows[limiter+" "+args[0].(string)] = strings.Join(row, ", ")
	}
	return int64(len(of)), nil
}

// read the rows, sorted, and how many statements there were since the last time.
func (s *session) read() (rows []string, sent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, row := range s.rows {
		limiter, _, _ := strings.Cut(name, " ")
		rows = append(rows, limiter+": "+row)
	}
	slices.Sort(rows)
	sent, s.sent = s.sent, 0
	return rows, sent
}

func count(t *User, limiter, key string, d rate.Decision) {
	t.Count(&rate.Request{Limiter: limiter, Key: key, Tokens: 3}, &d)
}

// nothing is what a Limiter has answered.
func nothing() (n Totals) { return n }

var (
	denied  = rate.Decision{}
	granted = rate.Decision{Allowed: true, Granted: 3}
)

// All limiters of a process are written in one statement each few seconds, and each minute in new rows, as long as
// somebody counts.
func TestOneStatementForAllLimiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(session)
		top := New(s, Config{})
		users := []*User{top.Enter("a", nothing), top.Enter("b", nothing)}
		check := func(what string, most int, want ...string) {
			t.Helper()
			synctest.Wait()
			if rows, sent := s.read(); !slices.Equal(rows, want) || sent > most || most > 0 && sent == 0 {
				t.Errorf("%s: %d statements, %q", what, sent, rows)
			}
		}
		time.Sleep(time.Hour)
		check("idle", 0)
		count(users[0], "a", "k", denied)
		count(users[0], "b", "k", granted)
		time.Sleep(writeEvery)
		check("the first", 2, "a: k -1 +0", "b: k -0 +1")
		count(users[0], "a", "k", granted)
		count(users[0], "a", "l", denied)
		users[0].Count(&rate.Request{Limiter: "a", Key: "m"}, &granted) // a peek
		another := rate.Decision{Allowed: true}                         // bucket of the group lacked tokens
		users[0].Count(&rate.Request{Limiter: "a", Key: "m", Tokens: 1}, &another)
		time.Sleep(writeEvery)
		check("more", 2, "a: k -1 +1, l -1 +0", "b: k -0 +1")
		time.Sleep(2 * slotTime)
		s.read()
		time.Sleep(time.Hour)
		check("idle again", 0, "a: k -1 +1, l -1 +0", "b: k -0 +1")
		count(users[0], "a", "k", denied)
		users[0].Leave(t.Context())
		users[0].Leave(t.Context())
		check("one has left", 0, "a: k -1 +1, l -1 +0", "b: k -0 +1")
		users[1].Leave(t.Context())
		check("all have left", 1, "a: k -1 +0", "a: k -1 +1, l -1 +0", "b: k -0 +1")
	})
}

// Totals are exactly what a Limiter has answered, however few of its requests are counted by key, also for limiters of
// another name.
func TestTotals(t *testing.T) {
	t.Parallel()
	s := new(session)
	top := New(s, Config{})
	var answered Totals
	user := top.Enter("a", func() Totals { return answered })
	for _, step := range []struct {
		answered Totals
		told     map[string]int // of these, denials by limiter
		want     map[string]Totals
	}{
		{Totals{Denied: 1000, Granted: 3}, map[string]int{"a": 1000}, map[string]Totals{"a": {1000, 3, 0}}},
		{Totals{Denied: 1}, map[string]int{"b": 1}, map[string]Totals{"a": {1000, 3, 0}, "b": {1, 0, 0}}},
		{Totals{}, map[string]int{"b": 2}, map[string]Totals{"a": {1000, 3, 0}, "b": {3, 0, 0}}}, // they are counted later
		{Totals{Denied: 12, Failed: 1}, nil, map[string]Totals{"a": {1010, 3, 1}, "b": {3, 0, 0}}},
		{Totals{}, nil, map[string]Totals{"a": {1010, 3, 1}, "b": {3, 0, 0}}},
	} {
		for limiter, n := range step.told {
			for range n {
				user.Told(limiter, Denied)
			}
		}
		for kind, n := range step.answered {
			answered[kind] += n
		}
		top.write(t.Context())
		if !maps.Equal(s.totals, step.want) {
			t.Errorf("%v, want %v", s.totals, step.want)
		}
	}
	user.Leave(t.Context())
}

// What cannot be written is logged once, and tried again each minute. The keys of an outage do not pile up.
func TestAnErrorIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &session{fails: errors.New("no such right")}
		top := New(s, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		user := top.Enter("a", nothing)
		for range 600 {
			count(user, "a", "k", denied)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if _, sent := s.read(); sent < 9 || sent > 11 || strings.Count(log.String(), "no such right") != 1 {
			t.Errorf("%d statements, logged:\n%s", sent, log.String())
		}
		s.mu.Lock()
		s.fails = nil
		s.mu.Unlock()
		time.Sleep(2 * slotTime)
		synctest.Wait()
		if rows, _ := s.read(); len(rows) != 1 || !strings.Contains(log.String(), "written again") {
			t.Errorf("%q, logged:\n%s", rows, log.String())
		}
		var n int
		rows, _ := s.read()
		if _, err := fmt.Sscanf(rows[0], "a: k -%d +0", &n); err != nil || n < 1 || n > 61 {
			t.Errorf("after ten minutes: %q", rows)
		}
		s.mu.Lock()
		s.fails = errors.New("again")
		s.mu.Unlock()
		count(user, "a", "k", denied)
		time.Sleep(slotTime)
		synctest.Wait()
		s.read()
		user.Leave(t.Context())
		if _, sent := s.read(); sent != 0 {
			t.Error("who leaves waits for what fails")
		}
	})
}

// What is answered without Postgres is counted as an estimate, and other limiters than 256 not at all.
func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	top := New(new(session), Config{})
	user := top.Enter("a", nothing)
	defer user.Leave(t.Context())
	for range 1000 * sample { // its standard deviation is 32 of 1000
		count(user, "a", "k", rate.Decision{Source: rate.FromMemory})
	}
	if got := top.limiters["a"].keys[Denied].counters[0].count; got%sample != 0 || got < 800*sample || got > 1200*sample {
		t.Errorf("counted %d of %d", got, 1000*sample)
	}
	for i := range 1000 {
		count(user, fmt.Sprint(i), "k", denied)
	}
	if len(top.limiters) != limiters {
		t.Errorf("%d limiters", len(top.limiters))
	}
}

// A key is kept when the caller uses its memory again, as HTTP servers do with a header's.
func TestKeysAreCopied(t *testing.T) {
	t.Parallel()
	var s sketch
	buffer := []byte("ann")
	s.add(unsafe.String(&buffer[0], len(buffer)), 1)
	copy(buffer, "bob")
	s.add("ann", 1)
	if len(s.counters) != 1 || s.counters[0].key != "ann" {
		t.Errorf("%+v", s.counters)
	}
}

// Hashed keys are written, and nothing else of them.
func TestKeysAreHashed(t *testing.T) {
	t.Parallel()
	s := new(session)
	top := New(s, Config{HashKeys: []byte("a secret of 24 bytes ...")})
	user := top.Enter("a", nothing)
	count(user, "a", "ann", denied)
	user.Leave(t.Context())
	want := top.Shown("ann")
	if rows, _ := s.read(); len(rows) != 1 || rows[0] != "a: "+want+" -1 +0" {
		t.Errorf("%q", rows)
	}
	other := New(s, Config{HashKeys: []byte("another of 24 bytes ....")}).Shown("ann")
	if len(want) != len("hmac:")+32 || want == other || want == top.Shown("bob") {
		t.Errorf("%s, with another secret %s", want, other)
	}
}
