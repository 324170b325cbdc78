package strategytest

import (
	"fmt"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// groupAhead is a row about a group that reserves: its requests, and whether it is granted.
type groupAhead struct {
	name    string
	ahead   time.Duration
	granted bool
	members []memberAhead
}

// memberAhead is a request for a bucket from which some tokens were taken before: a token is due after so long, or if
// the group is denied, there after so long.
type memberAhead struct {
	limit          rate.Limit
	before, tokens int64
	after          time.Duration // give or take what the test has taken; forNow: until some time later
}

const (
	h      = time.Hour
	forNow = time.Duration(-1)
)

var groupsAhead = []groupAhead{
	{"AllIsThere", h, true, []memberAhead{{slow(5), 2, 3, 0}, {slow(1), 0, 1, 0}}},
	{"OneIsToCome", 1000 * h, true, []memberAhead{{slow(2), 2, 1, 1000 * h}, {slow(5), 1, 3, 0}}},
	{"EachByItsOwnRate", 3000 * h, true, []memberAhead{{slow(3), 3, 2, 2000 * h}, {rate.Every(3000 * h), 1, 1, 3000 * h}, {slow(9), 0, 9, 0}}},
	{"TheLongestIsTooLong", 1500 * h, false, []memberAhead{{slow(2), 2, 1, 1000 * h}, {slow(2), 2, 2, 2000 * h}, {slow(2), 0, 2, 0}}},
	{"NothingAhead", 0, false, []memberAhead{{slow(2), 2, 1, 1000 * h}, {slow(2), 0, 2, 0}}},
	{"OneBucket", 1000 * h, true, []memberAhead{{slow(2), 2, 1, 1000 * h}}},
	{"OneBucketIsTooLong", 999 * h, false, []memberAhead{{slow(2), 2, 1, 1000 * h}}},

	{"DueInAWindow", 5 * time.Minute, true, []memberAhead{{rate.PerYear(9), 3, 2, 0}, {rate.Every(5 * time.Minute), 1, 1, 5 * time.Minute}}},
	{"AWindowWithoutARow", 5 * time.Minute, true, []memberAhead{{rate.Every(5 * time.Minute), 1, 1, 5 * time.Minute}, {rate.PerYear(9), 0, 2, 0}}},
	{"AWindowThatIsUsedUp", 9000 * h, false, []memberAhead{{rate.PerYear(3), 3, 1, forNow}, {slow(2), 2, 1, 1000 * h}}},
	{"DueAfterTheWindowsEnd", 1000 * h, false, []memberAhead{{rate.PerDay(9).Fixed(), 1, 2, 0}, {slow(2), 2, 1, 1000 * h}}},
	{"DueAfterTheEndOfANewWindow", 1000 * h, false, []memberAhead{{slow(2), 2, 1, 1000 * h}, {rate.PerDay(9).Fixed(), 0, 2, 0}}},
	{"DueAfterTheEndOfOneWindow", 1000 * h, false, []memberAhead{{rate.PerYear(9), 0, 2, 0}, {slow(2), 2, 1, 1000 * h}, {rate.PerDay(9).Fixed(), 0, 2, 0}}},
}

// A group reserves in each bucket what comes back in time, or nothing in any: see groupsAhead. The next group comes
// behind it; what is given back is reserved again.
func groupsReserve(s *suite) {
	s.needs(aGroupAhead)
	for _, row := range groupsAhead {
		var group []rate.Request
		for i, m := range row.members {
			r := s.ask(fmt.Sprint(row.name, i), m.limit, m.tokens, m.tokens)
			if m.limit.Calendar == "" {
				r.Ahead = row.ahead
			} else if !s.can(r) {
				group = nil
				break
			}
			if m.before > 0 {
				s.take(r.Key, m.limit, m.before, m.before)
			}
			group = append(group, r)
		}
		if group == nil {
			continue
		}
		first := s.takeAll(s.session, grouped(group)...)
		for i, d := range first {
			m, r := row.members[i], group[i]
			after := d.Delay
			if !row.granted {
				after = d.RetryAfter
			}
			off := m.after - after
			if m.after == forNow && after > 0 {
				off = 0
			}
			if d.Granted > 0 != row.granted || off < 0 || off > patience || !row.granted && (d.Delay > 0 || d.Allowed != (m.after == 0)) {
				s.Errorf("%s, %d: %+v, want it granted: %v, after %v", row.name, i, d, row.granted, m.after)
			}
			if !row.granted {
				s.has(r.Key, r.Limit, m.limit.Burst-m.before)
			}
		}
		if row.granted {
			s.reservesAgain(row, group, first)
		}
	}
}

// reservesAgain sends a group behind itself, gives the second one back, and sends it again.
func (s *suite) reservesAgain(row groupAhead, group []rate.Request, first []rate.Decision) {
	s.Helper()
	giver, able := s.strategy.(rate.GiveBacker)
	if !able {
		return
	}
	for i := range group {
		if r := &group[i]; r.Limit.Calendar == "" {
			r.Ahead = 9 * row.ahead
		}
	}
	var before []rate.Decision
	for range 2 {
		second := s.takeAll(s.session, grouped(group)...)
		if second[0].Granted == 0 { // a burst is too small, or a window ends before
			return
		}
		var refunds []rate.Refund
		for i, d := range second {
			r := group[i]
			r.Ahead = 0
			refunds = append(refunds, rate.Refund{Request: r, At: d.At, Delay: d.Delay})
			// What it takes comes back after that of the first one.
			behind := d.At.Add(d.Delay).Sub(first[i].At.Add(first[i].Delay))
			if want := time.Duration(r.Tokens) * r.Limit.Token(); first[i].Delay > 0 && behind != want {
				s.Errorf("%s, %d: %v behind the first group, want %v", row.name, i, behind, want)
			}
			if before != nil && d.Delay > 0 && !d.At.Add(d.Delay).Equal(before[i].At.Add(before[i].Delay)) {
				s.Errorf("%s, %d: %+v, and before it was given back %+v", row.name, i, d, before[i])
			}
		}
		if err := giver.GiveBack(s.Context(), s.session, refunds); err != nil {
			s.Fatal(err)
		}
		before = second
	}
}
