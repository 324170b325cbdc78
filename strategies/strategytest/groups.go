package strategytest

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// wantsMember checks the decision of a request that is granted, or whose group is denied: then
// there says whether its bucket has the tokens.
func (s *suite) wantsMember(d rate.Decision, granted, remaining int64, there bool) {
	s.Helper()
	if d.Granted != granted || d.Remaining != remaining || d.Allowed != there || d.Contended || (d.RetryAfter == 0) != there && granted == 0 {
		s.Errorf("granted %d, %d remain, allowed %v, retry after %v; want %d, %d, %v", d.Granted, d.Remaining, d.Allowed, d.RetryAfter, granted, remaining, there)
	}
	if d.At.IsZero() || d.At.Location() != time.UTC {
		s.Errorf("At is %v: want the database's time in UTC", d.At)
	}
}

// Buckets with limits of their own, new and old, in any order: all are taken from, or none.
func groupsAllOrNothing(s *suite) {
	s.knows(aGroup)
	five, two, many := s.needs(slow(5)), s.needs(slow(2)), s.needs(rate.PerHour(1000))
	group := []rate.Request{s.ask("user", two, 1, 1), s.ask("global", many, 10, 10), s.ask("org", five, 2, 2)}
	for left := int64(1); left >= 0; left-- {
		d := s.takeAll(s.session, grouped(group)...)
		s.wantsMember(d[0], 1, left, true)
		s.wantsMember(d[1], 10, d[1].Remaining, true)
		s.wantsMember(d[2], 2, 1+2*left, true)
	}
	for range 2 { // the user has none, and the organisation not enough
		d := s.takeAll(s.session, grouped(group)...)
		s.wantsMember(d[0], 0, 0, false)
		s.wantsMember(d[1], 0, d[1].Remaining, true)
		s.wantsMember(d[2], 0, 1, false)
		if d[0].RetryAfter < 999*time.Hour || d[2].RetryAfter < 999*time.Hour {
			s.Errorf("RetryAfter is %v and %v, want 1000h", d[0].RetryAfter, d[2].RetryAfter)
		}
	}
	fresh := []rate.Request{s.ask("new", five, 5, 5), group[0]}
	d := s.takeAll(s.session, grouped(fresh)...)
	s.wantsMember(d[0], 0, 5, true)
	s.wantsMember(d[1], 0, 0, false)
	s.wants(s.take("org", five, 1, 1), 1, 0)
	s.wants(s.take("new", five, 5, 5), 5, 0)
	if left := s.peek("global", many).Remaining; left < 980 || left > 981 {
		s.Errorf("%d of 1000 remain, want 980", left)
	}
	// Another limit of a bucket: what was used stays used.
	raised := s.takeAll(s.session, grouped([]rate.Request{s.ask("org", slow(8), 2, 2), s.ask("user", slow(3), 1, 1)})...)
	s.wantsMember(raised[0], 2, 1, true)
	s.wantsMember(raised[1], 1, 0, true)
	other := s.ask("org", five, 1, 1)
	other.Limiter += " per day"
	both := s.takeAll(s.session, grouped([]rate.Request{other, s.ask("third", five, 1, 1)})...)
	s.wantsMember(both[0], 1, 4, true)
}

// Several groups in one call get what they ask for in their order. A group that is denied takes
// nothing from those after it.
func groupsInTurn(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(5))
	s.take("c", limit, 4, 4)
	d := s.takeAll(s.session, grouped(
		[]rate.Request{s.ask("b", limit, 1, 1), s.ask("a", limit, 3, 3)},
		[]rate.Request{s.ask("a", limit, 3, 3), s.ask("b", limit, 4, 4)},
		[]rate.Request{s.ask("c", limit, 1, 1), s.ask("a", limit, 1, 1)},
		[]rate.Request{s.ask("c", limit, 1, 1), s.ask("a", limit, 1, 1)},
		[]rate.Request{s.ask("a", limit, 1, 1), s.ask("b", limit, 4, 4)},
		[]rate.Request{s.ask("d", limit, 5, 5)},
	)...)
	for i, want := range []struct {
		granted, remaining int64
		there              bool
	}{
		{1, 4, true}, {3, 2, true},
		{0, 2, false}, {0, 4, true},
		{1, 0, true}, {1, 1, true},
		{0, 0, false}, {0, 1, true},
		{1, 0, true}, {4, 0, true},
		{5, 0, true},
	} {
		s.wantsMember(d[i], want.granted, want.remaining, want.there)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		s.wants(s.take(key, limit, 1, 1), 0, 0)
	}
}

// A group that asks for what a group cannot have is an error, and none of its call is taken.
func badGroups(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(5))
	good := []rate.Request{s.ask("good", limit, 5, 5), s.ask("better", limit, 1, 1)}
	refuses(s, s.ask("bad", limit, 1, 1), map[string]func(*rate.Request){
		"Group: a peek":                    func(r *rate.Request) { r.Tokens = 0 },
		"Group: units":                     func(r *rate.Request) { r.Tokens = 2 },
		"Group: ahead":                     func(r *rate.Request) { r.Ahead = time.Second },
		"Group: an ID":                     func(r *rate.Request) { r.ID = "1" },
		"Key: none":                        func(r *rate.Request) { r.Key = "" },
		"Limiter: none":                    func(r *rate.Request) { r.Limiter = "" },
		"Tokens: more than burst":          func(r *rate.Request) { r.Tokens, r.Unit = 6, 6 },
		"Key: a bucket twice":              func(r *rate.Request) { r.Key = "other" },
		"Limit: another in the same call":  func(r *rate.Request) { r.Key, r.Limit = "good", slow(6) },
		"Limit: another in the same group": func(r *rate.Request) { r.Key, r.Limit = "other", slow(6) },
		"Tokens: of a limit of zero":       func(r *rate.Request) { r.Limit = rate.Limit{} },
	}, func(bad rate.Request) error {
		_, err := s.strategy.Take(s.Context(), s.session, grouped(good, []rate.Request{s.ask("other", limit, 1, 1), bad}))
		return err
	})
	s.wants(s.take("good", limit, 5, 5), 5, 0)
	s.wants(s.take("other", limit, 5, 5), 5, 0)
}

// A group waits for a row that somebody else holds locked, and holds no other row meanwhile. An
// impatient call gives up.
func groupsWait(s *suite) {
	s.knows(aGroup)
	limit := s.needs(slow(100))
	for _, key := range []string{"b", "new"} { // a row that is there, and one that is not committed
		group := []rate.Request{s.ask("a", limit, 1, 1), s.ask(key, limit, 100, 100), s.ask("z", limit, 1, 1)}
		if key == "b" {
			for i := range group {
				s.take(group[i].Key, limit, 1, 1)
			}
			group[1].Tokens, group[1].Unit = 99, 99
		}
		tx := s.begin()
		s.takeAll(tx, s.ask(key, limit, 1, 1))

		impatient := []rate.Request{group[0], group[1]}
		impatient[0].Impatient = true
		_, err := s.strategy.Take(s.Context(), s.session, grouped(impatient))
		var held *rate.HeldError
		if !errors.Is(err, rate.ErrLocked) || errors.As(err, &held) && (len(held.Held) != 1 || held.Held[0] != rate.Bucket{Limiter: s.limiter, Key: key}) {
			s.Errorf("an impatient group: %v (%+v)", err, held)
		}
		if _, err = s.strategy.Take(s.Context(), s.session, grouped(group, group)); !errors.Is(err, rate.ErrLocked) {
			s.Errorf("two groups: %v", err)
		}
		d := s.whileItWaits(grouped(group), func() {
			s.take("a", limit, 1, 1)
			if err := tx.Rollback(s.Context()); err != nil {
				s.Fatal(err)
			}
		})
		s.wantsMember(d[1], group[1].Tokens, 0, true)
	}
}

// 64 callers on two pools take for groups of 2 to 5 of 20 keys, each in an order of its own, alone
// or two groups in a call, in a transaction of their own or of the caller's; others take from
// single keys. Nobody deadlocks, every bucket is exact, and no group is taken in part.
func groupsUnderLoad(s *suite) {
	s.knows(aGroup)
	limits := []rate.Limit{s.needs(rate.Limit{Tokens: 97, Period: 300 * time.Millisecond, Burst: 20}), slow(300)}
	drivers := []Driver{s.driver, s.open(s.T, s.looksForDeadlocks())}
	beforehand := make(histories)
	for key := range 20 { // The rows are there: see noDeadlock.
		r := s.ask(strconv.Itoa(key), limits[key%2], 1, 1)
		beforehand.record(r, s.takeAll(s.session, r)[0])
	}
	all := s.underLoad(64, 300*time.Millisecond, func(i int, random *rand.Rand, recorded histories) (granted int64, err error) {
		groups := s.randomGroups(random, limits)
		driver, requests := drivers[i%2], grouped(groups...)
		var decisions []rate.Decision
		switch i / 2 % 4 {
		case 0, 1:
			decisions, err = s.strategy.Take(s.Context(), driver.Session(), requests)
		case 2:
			err = within(s.Context(), driver, func(tx Tx) error {
				decisions, err = s.strategy.Take(s.Context(), tx, requests)
				return err
			})
		default:
			groups = [][]rate.Request{groups[0][:1]}
			decisions, err = s.strategy.Take(s.Context(), driver.Session(), groups[0])
		}
		if err != nil {
			return 0, err
		}
		for _, group := range groups {
			granted += s.record(recorded, group, decisions[:len(group)])
			decisions = decisions[len(group):]
		}
		return granted, nil
	})
	all.merge(beforehand)
	for key, events := range all {
		number, _ := strconv.Atoi(key)
		if report := s.table.Check(limits[number%2], events); !report.OK() {
			s.Errorf("%s: %v", key, report)
		}
	}
}

// randomGroups are for keys of which half have the first limit.
func (s *suite) randomGroups(random *rand.Rand, limits []rate.Limit) (groups [][]rate.Request) {
	for range 1 + random.IntN(2) {
		var group []rate.Request
		for _, key := range random.Perm(20)[:2+random.IntN(4)] {
			n := 1 + random.Int64N(3)
			group = append(group, s.ask(strconv.Itoa(key), limits[key%2], n, n))
		}
		groups = append(groups, group)
	}
	return groups
}

// record a group: grants of all, or denials by the buckets that lacked tokens. It returns how many tokens were granted.
func (s *suite) record(of histories, group []rate.Request, decisions []rate.Decision) (tokens int64) {
	s.Helper()
	granted, lacking := 0, 0
	for i, d := range decisions {
		switch {
		case d.Granted == group[i].Tokens:
			granted++
		case d.Granted != 0:
			s.Errorf("%d of %d tokens granted", d.Granted, group[i].Tokens)
		case d.Allowed:
			continue
		default:
			lacking++
		}
		of.record(group[i], d)
		tokens += d.Granted
	}
	if granted > 0 && granted < len(decisions) || granted == 0 && lacking == 0 {
		s.Errorf("%d of %d requests of a group were granted, %d had no tokens: %+v", granted, len(decisions), lacking, decisions)
	}
	return tokens
}
