// Package limits finds the rule of the table pglimit.limits that holds for a key.
package limits

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Set is what the table says as of one moment. It is never changed, only replaced.
type Set struct {
	Stamp   string // for pglimit.limits_since
	Version int64
	Rules   int

	Observes bool // one of the rules is only observed

	Unreadable []*rate.LimitRule

	off      *rate.LimitRule // of all limiters
	limiters map[string]*Rules
	names    []string // of these limiters, sorted
	all      []*rate.LimitRule

	at  time.Time // by the database's clock
	got time.Time // then, by this process's
}

// Rules of one limiter. If none of them has changed, they are the same in the next Set. A nil Rules has none.
type Rules struct {
	off            *rate.LimitRule
	live, observed byMatch
}

// byMatch are the rules of one kind.
type byMatch struct {
	all      *rate.LimitRule
	keys     map[string]*rate.LimitRule
	prefixes map[string]*rate.LimitRule
	lengths  []int // of the prefixes, each once, the longest first
}

// Now is the database's clock.
func (s *Set) Now() time.Time { return s.at.Add(time.Since(s.got)).Truncate(time.Microsecond) }

// Find returns the rules that hold for a key: the live one, or that which switches the limiter off, and the
// one that is only observed. Each may be nil. own says that the request has a limit of its own, which
// beats one for all keys, but not one for some.
func (s *Set) Find(limiter, key string, own bool) (live, observed *rate.LimitRule) {
	return s.FindIn(s.Of(limiter), key, own)
}

// Of returns the rules of a limiter.
func (s *Set) Of(limiter string) *Rules { return s.limiters[limiter] }

// FindIn is Find in the rules of a limiter.
func (s *Set) FindIn(of *Rules, key string, own bool) (live, observed *rate.LimitRule) {
	if of == nil {
		return s.off, nil
	}
	live = of.live.find(key)
	if s.Observes {
		observed = of.observed.find(key)
	}
	switch {
	case s.off != nil:
		live = s.off
	case of.off != nil:
		live = of.off
	case own && live != nil && live.Action == rate.ActionEnforce && live.MatchesAll():
		live = nil
	}
	return live, observed
}

// Differ says whether other rules hold for the limiter in the other Set.
func (s *Set) Differ(limiter string, other *Set) bool {
	return s.off != other.off || s.Of(limiter) != other.Of(limiter)
}

func (of *Rules) equal(other *Rules) bool {
	return other != nil && of.off == other.off && of.live.equal(&other.live) && of.observed.equal(&other.observed)
}

func (m *byMatch) equal(other *byMatch) bool {
	return m.all == other.all && maps.Equal(m.keys, other.keys) && maps.Equal(m.prefixes, other.prefixes)
}

func (m *byMatch) find(key string) *rate.LimitRule {
	if r := m.keys[key]; r != nil {
		return r
	}
	for _, n := range m.lengths {
		if n <= len(key) {
			if r := m.prefixes[key[:n]]; r != nil {
				return r
			}
		}
	}
	return m.all
}

// over returns the one of two rules for the same keys that holds: the one that expires, else the later one.
func over(earlier, r *rate.LimitRule) *rate.LimitRule {
	if earlier != nil && !earlier.Expires.IsZero() && r.Expires.IsZero() {
		return earlier
	}
	return r
}

// add the rule, over or under another one for the same keys.
func (m *byMatch) add(r *rate.LimitRule) {
	if m.keys == nil {
		m.keys, m.prefixes = make(map[string]*rate.LimitRule), make(map[string]*rate.LimitRule)
	}
	switch {
	case r.Key != "":
		m.keys[r.Key] = over(m.keys[r.Key], r)
	case r.Prefix != "":
		m.prefixes[r.Prefix] = over(m.prefixes[r.Prefix], r)
		if n := len(r.Prefix); !slices.Contains(m.lengths, n) {
			m.lengths = append(m.lengths, n)
			slices.SortFunc(m.lengths, func(a, b int) int { return cmp.Compare(b, a) })
		}
	default:
		m.all = over(m.all, r)
	}
}

// New is a Set of these rules. A rule that is as it was in the set before keeps its pointer, by which Differ and Holds
// see what has changed.
func New(before *Set, rules []rate.LimitRule) *Set {
	s := &Set{limiters: make(map[string]*Rules), got: time.Now()}
	s.at = s.got.UTC()
	for i := range rules {
		if rules[i].Action == rate.ActionPlaces { // of a semaphore
			continue
		}
		own := rules[i] // a rule that stays must not keep all that came with it
		r := &own
		place := s.place(r)
		if before != nil {
			if old := before.lookUp(r); old != nil && old.Equal(r) {
				r = old
			}
		}
		place(r)
		s.all = append(s.all, r)
		if r.Unreadable != "" {
			s.Unreadable = append(s.Unreadable, r)
		}
	}
	s.Rules = len(s.all)
	for name, of := range s.limiters {
		if before != nil && of.equal(before.limiters[name]) {
			s.limiters[name] = before.limiters[name]
		}
	}
	s.names = slices.Sorted(maps.Keys(s.limiters))
	return s
}

// Limiters returns the names of those that have rules, sorted. They must not be changed.
func (s *Set) Limiters() []string { return s.names }

// Expire returns the set without the rules that have ended by now, for while the table cannot be read; nil: none has.
func (s *Set) Expire() *Set {
	now := s.Now()
	var left []rate.LimitRule
	for _, r := range s.all {
		if r.Expires.IsZero() || r.Expires.After(now) {
			left = append(left, *r)
		}
	}
	if len(left) == len(s.all) {
		return nil
	}
	next := New(s, left)
	next.Version, next.at, next.got = s.Version, s.at, s.got // without a Stamp: the table may know better when they end
	return next
}

// All returns all rules. A nil Set has none.
func (s *Set) All() iter.Seq[*rate.LimitRule] {
	if s == nil {
		return func(func(*rate.LimitRule) bool) {}
	}
	return slices.Values(s.all)
}

// Holds says whether just this rule is the one of its kind for its keys.
func (s *Set) Holds(r *rate.LimitRule) bool { return s != nil && s.lookUp(r) == r }

// Has says whether there is a rule of that kind for the same keys.
func (s *Set) Has(r *rate.LimitRule) bool { return s != nil && s.lookUp(r) != nil }

// place returns what puts a rule where this one belongs.
func (s *Set) place(r *rate.LimitRule) func(*rate.LimitRule) {
	if r.Limiter == "" {
		return func(r *rate.LimitRule) { s.off = over(s.off, r) }
	}
	of := s.limiters[r.Limiter]
	if of == nil {
		of = new(Rules)
		s.limiters[r.Limiter] = of
	}
	switch r.Action {
	case rate.ActionOff:
		return func(r *rate.LimitRule) { of.off = over(of.off, r) }
	case rate.ActionObserve:
		s.Observes = true
		return of.observed.add
	default:
		return of.live.add
	}
}

// lookUp returns the rule of this set in the place of the other one.
func (s *Set) lookUp(r *rate.LimitRule) *rate.LimitRule {
	if r.Limiter == "" {
		return s.off
	}
	of := s.limiters[r.Limiter]
	if of == nil {
		return nil
	}
	m := &of.live
	switch r.Action {
	case rate.ActionOff:
		return of.off
	case rate.ActionObserve:
		m = &of.observed
	}
	switch {
	case r.Key != "":
		return m.keys[r.Key]
	case r.Prefix != "":
		return m.prefixes[r.Prefix]
	}
	return m.all
}

// Parse reads the answer of pglimit.limits_since: the set before, with a newer clock, if nothing has changed. A row
// that cannot be read is a rule that says so: it must not keep the others from being read.
func Parse(answer string, before *Set) (*Set, error) {
	var a struct {
		Stamp   string      `json:"stamp"`
		Version int64       `json:"version"`
		Now     json.Number `json:"now"`
		Rules   []struct {
			ID      int64       `json:"id"`
			Limiter string      `json:"limiter"`
			Key     string      `json:"key"`
			Prefix  string      `json:"prefix"`
			Action  string      `json:"action"`
			Limit   string      `json:"limit"`
			MaxWait string      `json:"max_wait"`
			Note    string      `json:"note"`
			Expires json.Number `json:"expires"`
		} `json:"rules"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return nil, fmt.Errorf("pglimit: cannot read the table pglimit.limits: %w", err)
	}
	rules := make([]rate.LimitRule, len(a.Rules))
	for i := range a.Rules {
		row, r := &a.Rules[i], &rules[i]
		*r = rate.LimitRule{ID: row.ID, Limiter: row.Limiter, Key: row.Key, Prefix: row.Prefix, Note: row.Note}
		if err := parseRule(r, row.Action, row.Limit, row.MaxWait, row.Expires); err != nil {
			r.Limit, r.MaxWait, r.Unreadable = rate.Limit{}, 0, strings.TrimPrefix(err.Error(), "pglimit: ")
		}
	}
	at, err := parseTime(a.Now)
	if err != nil {
		return nil, err
	}
	if before != nil && a.Rules == nil && a.Stamp == before.Stamp {
		same := *before
		same.at, same.got = at, time.Now()
		return &same, nil
	}
	s := New(before, rules)
	s.Stamp, s.Version, s.at = a.Stamp, a.Version, at
	return s, nil
}

func parseRule(r *rate.LimitRule, action, limit, maxWait string, expires json.Number) (err error) {
	if r.Action, err = rate.ParseAction(action); err != nil {
		return err
	}
	if expires != "" {
		if r.Expires, err = parseTime(expires); err != nil {
			return err
		}
	}
	if limit != "" {
		if r.Limit, err = rate.ParseLimit(limit); err != nil {
			return err
		}
	}
	if maxWait != "" {
		r.MaxWait, err = ParseMaxWait(maxWait, r.Limit)
	}
	return err
}

// ParseMaxWait reads a period such as "30s", or a share of the limit's period such as "50%".
func ParseMaxWait(text string, of rate.Limit) (time.Duration, error) {
	if percent, is := strings.CutSuffix(text, "%"); is {
		if share, err := strconv.ParseUint(percent, 10, 32); err == nil && share > 0 {
			return time.Duration(min(float64(of.Period)*float64(share)/100, math.MaxInt64/2)), nil
		}
	} else if limit, err := rate.ParseLimit("1/" + text); err == nil && limit == rate.Every(limit.Period) { // no window
		return limit.Period, nil
	}
	return 0, fmt.Errorf("the longest wait is %q: it must be a period such as 30s, or a share of the limit's such as 50%%",
		text)
}

// parseTime reads seconds since 1970, with microseconds.
func parseTime(seconds json.Number) (time.Time, error) {
	whole, fraction, _ := strings.Cut(seconds.String(), ".")
	s, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("pglimit: cannot read the time %q: %w", seconds, err)
	}
	us, err := strconv.ParseInt((fraction + "000000")[:6], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("pglimit: cannot read the time %q: %w", seconds, err)
	}
	return time.Unix(s, us*1000).UTC(), nil
}
