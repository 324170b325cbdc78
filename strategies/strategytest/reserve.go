package strategytest

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
)

func (s *suite) ahead(key string, limit rate.Limit, tokens, unit int64, ahead time.Duration) rate.Request {
	r := s.ask(key, limit, tokens, unit)
	r.Ahead = ahead
	return r
}

// due checks a grant that is due so long after another time, and returns its Delay.
func (s *suite) due(d rate.Decision, tokens int64, from time.Time, after time.Duration) {
	s.Helper()
	s.wants(d, tokens, 0)
	if due := d.At.Add(d.Delay); !due.Equal(from.Add(after)) {
		s.Errorf("due %v later, want %v: %+v", due.Sub(from), after, d)
	}
}

// Tokens are reserved in turn, each due when it comes back, to the nanosecond; not one that comes
// back later than Ahead; and what is refused takes nothing.
func reserves(s *suite) {
	s.knows(ahead)
	const token = time.Hour
	limit := s.needs(rate.Every(token).WithBurst(3))
	first := s.take("k", limit, 3, 3)
	for i := range 4 {
		d := s.takeAll(s.session, s.ahead("k", limit, 1, 1, 5*token))[0]
		s.due(d, 1, first.At, time.Duration(i+1)*token)
		full := first.At.Add(time.Duration(i+4) * token)
		for _, d := range []rate.Decision{d, s.peek("k", limit), s.take("k", limit, 1, 1)} {
			// The bucket owes more than its burst, and says so.
			if d.At.Add(d.ResetAfter).Sub(full).Abs() > time.Microsecond || d.At.Add(d.RetryAfter).Sub(full.Add(-2*token)).Abs() > time.Microsecond || d.Remaining != 0 {
				s.Errorf("%d: %+v, want it to be full at %v", i, d, full)
			}
			if d.Granted == 0 && (d.Allowed || d.Delay != 0) {
				s.Errorf("%d: %+v", i, d)
			}
		}
	}
	// The next is due 5 hours after the first, that is a little less than 5 hours from now.
	for _, r := range []rate.Request{
		s.ahead("k", limit, 1, 1, 5*token-time.Minute), s.ahead("k", limit, 2, 2, 5*token), s.ahead("k", limit, 3, 3, 6*token), s.ask("k", limit, 1, 1),
	} {
		if d := s.takeAll(s.session, r)[0]; d.Allowed || d.Granted != 0 || d.Delay != 0 {
			s.Errorf("%d tokens within %v: %+v", r.Tokens, r.Ahead, d)
		}
	}
	s.due(s.takeAll(s.session, s.ahead("k", limit, 9, 2, 9*token))[0], 4, first.At, 8*token) // as much as comes back, in units
	// What is there is granted without a delay.
	s.wants(s.takeAll(s.session, s.ahead("new", limit, 2, 2, token))[0], 2, 1)
	d := s.takeAll(s.session, s.ahead("new", limit, 3, 3, 10*token))[0]
	if d.Granted != 3 || d.Delay <= token || d.Delay > 2*token {
		s.Errorf("%+v", d)
	}
}

// The time ahead counts to the nanosecond: a token comes back a nanosecond late, or just in time.
func reservesExactly(s *suite) {
	s.knows(ahead)
	limit := s.needs(rate.Limit{Tokens: 3, Period: time.Hour, Burst: 1}) // 1,200,000,000,000 ns
	for name, session := range s.sessions() {
		for _, several := range []bool{false, true} {
			key := name + map[bool]string{false: " alone", true: " and another"}[several]
			first := s.takeAll(session, s.ask(key, limit, 1, 1))[0]
			for _, r := range []rate.Request{s.ahead(key, limit, 1, 1, limit.Token()-10*time.Minute), s.ahead(key, limit, 1, 1, limit.Token()+time.Nanosecond)} {
				requests := []rate.Request{r}
				if several {
					requests = append(requests, s.ahead(key+"'", limit, 1, 1, time.Second))
				}
				d := s.takeAll(session, requests...)[0]
				if r.Ahead < limit.Token() {
					if d.Allowed {
						s.Errorf("%s: within %v: %+v", key, r.Ahead, d)
					}
				} else {
					s.due(d, 1, first.At, limit.Token())
				}
			}
		}
	}
}

// sessions are a pool's and, in Postgres, that of a transaction.
func (s *suite) sessions() map[string]rate.Session {
	s.Helper()
	sessions := map[string]rate.Session{"on the pool": s.session}
	if s.inMemory == nil {
		sessions["in a transaction"] = s.begin()
	}
	return sessions
}

// Requests of one call are decided in their order, each by its own Ahead, also beside other
// buckets.
func reservesInOneCall(s *suite) {
	s.knows(ahead)
	const token = time.Hour
	limit := s.needs(rate.Every(token).WithBurst(2))
	for name, session := range s.sessions() {
		for _, others := range []int{0, 1, 3} {
			key := name + string(rune('a'+others))
			requests := []rate.Request{
				s.ask(key, limit, 1, 1),
				s.ahead(key, limit, 2, 2, token/2),   // due after an hour
				s.ahead(key, limit, 2, 2, token),     // and that is just in time
				s.ask(key, limit, 1, 1),              // not there
				s.ahead(key, limit, 5, 1, 3*token),   // two of them
				s.ask(key, limit, 0, 1),              // a peek
				s.ahead(key, limit, 1, 1, 3*token),   // due after 4 hours
				s.ahead(key, limit, 1, 1, 100*token), // that one, too
			}
			for i := range others { // before it and behind it in the order of the rows
				requests = append(requests, s.ahead(string(rune('!'+i))+key, limit, 1, 1, token), s.ahead(key+string(rune('!'+i)), limit, 2, 2, token))
			}
			d := s.takeAll(session, requests...)
			for i, want := range []struct {
				granted int64
				delay   time.Duration
			}{{1, 0}, {0, 0}, {2, token}, {0, 0}, {2, 3 * token}, {0, 0}, {0, 0}, {1, 4 * token}} {
				// In a transaction they are decided one after another, a little later.
				if off := want.delay - d[i].Delay; d[i].Granted != want.granted || d[i].Allowed != (want.granted > 0) || off < 0 || off > time.Minute {
					s.Errorf("%s, beside %d: request %d: %+v, want %+v", name, others, i, d[i], want)
				}
			}
			for i := range others {
				if one, two := d[8+2*i], d[9+2*i]; one.Granted != 1 || two.Granted != 2 || one.Delay != 0 || two.Delay != 0 {
					s.Errorf("%s: beside it: %+v, %+v", name, one, two)
				}
			}
			if left := s.takeAll(session, s.ask(key, limit, 0, 1))[0]; left.ResetAfter <= 6*token-time.Minute || left.ResetAfter > 6*token {
				s.Errorf("%s: %+v, want 6 tokens to be owed", name, left)
			}
		}
	}
}

func badReservations(s *suite) {
	s.knows(ahead)
	limit := s.needs(slow(1))
	refuses(s, s.ask("k", limit, 1, 1), map[string]func(*rate.Request){
		"Ahead: negative":     func(r *rate.Request) { r.Ahead = -1 },
		"Ahead: a peek":       func(r *rate.Request) { r.Tokens, r.Ahead = 0, 1 },
		"Ahead: too far":      func(r *rate.Request) { r.Ahead = rate.MaxWindow - limit.Window() + 1 },
		"Ahead: as 200 years": func(r *rate.Request) { r.Ahead = rate.MaxWindow },
	}, func(bad rate.Request) error {
		_, err := s.strategy.Take(s.Context(), s.session, []rate.Request{s.ask("l", limit, 1, 1), bad})
		return err
	})
	s.wants(s.take("l", limit, 1, 1), 1, 0)
	// As far as that is possible, and back again.
	first := s.take("k", limit, 1, 1)
	r := s.ahead("k", limit, 1000, 1, rate.MaxWindow-limit.Window())
	far := s.takeAll(s.session, r)[0]
	if tokens := int64((rate.MaxWindow - limit.Window()) / limit.Token()); far.Granted != min(1000, tokens) || far.Delay <= 0 {
		s.Errorf("%+v, want %d tokens", far, tokens)
	}
	s.due(far, far.Granted, first.At, time.Duration(far.Granted)*limit.Token())
	s.wants(s.take("k", limit, 1, 1), 0, 0)
}

// A reservation that is given back can be had again, unless others stand behind it: those keep
// their times.
func reservationsGivenBack(s *suite) {
	s.knows(ahead)
	const token = time.Hour
	limit := s.needs(rate.Every(token).WithBurst(2))
	first := s.take("k", limit, 2, 2)
	reserve := func(n int64) (rate.Decision, rate.Refund) {
		s.Helper()
		d := s.takeAll(s.session, s.ahead("k", limit, n, 1, 50*token))[0]
		if d.Granted != n {
			s.Fatalf("%+v, want %d tokens", d, n)
		}
		return d, rate.Refund{Request: s.ask("k", limit, n, 1), At: d.At, Delay: d.Delay}
	}
	wantNext := func(what string, after time.Duration) {
		s.Helper()
		if d, back := reserve(1); !d.At.Add(d.Delay).Equal(first.At.Add(after)) {
			s.Errorf("%s: the next is due after %v, want %v", what, d.At.Add(d.Delay).Sub(first.At), after)
		} else {
			s.giveBack(back)
		}
	}
	_, one := reserve(1)
	_, two := reserve(2)
	_, three := reserve(1)
	wantNext("four reserved", 5*token)
	s.giveBack(one)
	wantNext("three stand behind it", 5*token)
	s.giveBack(two)
	wantNext("one of two", 4*token)
	s.giveBack(three)
	wantNext("the last", 3*token)

	_, many := reserve(10) // more than the burst: they are due one after another, and nothing is behind
	s.giveBack(many)
	wantNext("many", 3*token)
	_, many = reserve(10)
	reserve(1)
	s.giveBack(many) // of these at most a burst, less what is behind
	wantNext("many with one behind", 13*token)
}

// 64 callers reserve and cancel: what is used when it is due is never over, nothing is due later
// than was asked for, and no two tokens are due at once, in the order in which they were granted.
func reservesUnderLoad(s *suite) {
	s.knows(ahead)
	for name, limit := range map[string]rate.Limit{
		"one per interval": rate.Every(5 * time.Millisecond),
		"mixed costs":      {Tokens: 97, Period: 300 * time.Millisecond, Burst: 20},
	} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		giver, gives := s.strategy.(rate.GiveBacker)
		all := s.underLoad(64, 200*time.Millisecond, func(_ int, random *rand.Rand, recorded histories) (granted int64, err error) {
			requests := s.mixed(name, random, limit)
			for j := range requests {
				if requests[j].Tokens > 0 && random.IntN(3) > 0 {
					requests[j].Ahead = time.Duration(random.Int64N(int64(3 * limit.Window())))
				}
			}
			decisions, err := s.strategy.Take(s.Context(), s.session, requests)
			for j, d := range decisions {
				r := requests[j]
				if d.Delay > r.Ahead || d.Delay < 0 || d.Granted == 0 && d.Delay > 0 {
					s.Errorf("%s: %+v: want a delay of at most %v", name, d, r.Ahead)
				}
				if d.Granted > 0 && gives && random.IntN(4) == 0 {
					back := r
					back.Tokens, back.Unit, back.Ahead = d.Granted, min(d.Granted, limit.Burst), 0
					if err := giver.GiveBack(s.Context(), s.session, []rate.Refund{{Request: back, At: d.At, Delay: d.Delay}}); err != nil {
						s.Error(err)
					}
					continue
				}
				recorded.used(r, d)
				granted += d.Granted
			}
			return granted, err
		})
		s.neverOver(name, all, limit)
	}
}

// used records the units of a grant, each when it is due.
func (h histories) used(r rate.Request, d rate.Decision) {
	for left := d.Granted; left > 0; left -= r.Unit {
		due := max(0, d.Delay-time.Duration(left-r.Unit)*r.Limit.Token())
		h[r.Key] = append(h[r.Key], audit.Event{At: d.At.Add(due).UnixNano(), Granted: r.Unit})
	}
}

// A strategy that cannot reserve says so, rather than deny or grant.
func reservesOrSaysSo(s *suite) {
	if s.strategy.Check(ahead()) == nil {
		s.Skip("it can")
	}
	limit := s.needs(slow(1))
	if _, err := s.strategy.Take(s.Context(), s.session, []rate.Request{s.ahead("k", limit, 1, 1, time.Hour)}); !errors.Is(err, errors.ErrUnsupported) {
		s.Errorf("Ahead: %v", err)
	}
	s.wants(s.take("k", limit, 1, 1), 1, 0)
}
