package strategytest

import (
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Nobody is granted tokens of a paused bucket, however he asks, under whatever limit, and whatever the row was before.
// He is told when the pause ends, and may take behind it.
func pauses(s *suite) {
	pauser, able := s.strategy.(rate.Pauser)
	if !able {
		s.Skipf("%s cannot pause", s.strategy.Name())
	}
	of := rate.PerSecond(1)
	before := map[string]func(key string){
		"NoRow":        func(string) {},
		"ARow":         func(key string) { s.take(key, of.WithBurst(9), 3, 3) },
		"AnotherPrice": func(key string) { s.take(key, rate.PerHour(7), 3, 3) },
		"AWindow":      func(key string) { s.take(key, rate.PerYear(7), 3, 3) },
		"AUsedWindow":  func(key string) { s.take(key, rate.PerYear(9), 9, 9) },
		"ALease":       func(key string) { s.leased(key, of.WithBurst(90)) },
		"ARefund": func(key string) {
			r := s.ask(key, of, 1, 1)
			d := s.takeAll(s.session, r)[0]
			s.pause(pauser, key, time.Hour)
			if err := s.strategy.(rate.GiveBacker).GiveBack(s.Context(), s.session, []rate.Refund{{Request: r, At: d.At}}); err != nil {
				s.Fatal(err)
			}
		},
	}
	limits := []rate.Limit{of.WithBurst(9), of.WithBurst(100_000), rate.Every(time.Millisecond).WithBurst(100_000_000), rate.PerYear(9)}
	for name, prepare := range before {
		for i, limit := range limits {
			key := fmt.Sprint(name, i)
			if r := s.ask(key, limit, 1, 1); !s.can(r) {
				continue
			}
			prepare(key)
			due := s.peek(key, limit)
			asked := s.peek(key, limit).At
			s.pause(pauser, key, time.Hour)
			s.pause(pauser, key, time.Minute) // which changes nothing
			until := asked.Add(time.Hour)
			if left, err := pauser.Paused(s.Context(), s.session, s.limiter, key); err != nil || left < 59*time.Minute {
				s.Errorf("%s: paused for %v, %v", key, left, err)
			}
			if there := due.At.Add(due.RetryAfter); limit.Calendar != "" && there.After(until) {
				until = there // the window is used up
			}
			s.nothingBefore(until, key, limit)
			if s.pause(pauser, key, 2*time.Hour); limit.Calendar == "" {
				later := s.ask(key, limit, 1, 1)
				later.Ahead = 3 * time.Hour
				if d := s.takeAll(s.session, later)[0]; d.Granted != 1 || d.At.Add(d.Delay).Before(until.Add(59*time.Minute)) {
					s.Errorf("%s, %v: taken ahead: %+v, paused for another hour after %v", key, limit, d, until)
				}
			}
			if resetter, able := s.strategy.(rate.Resetter); able {
				if err := resetter.Reset(s.Context(), s.session, s.limiter, key); err != nil {
					s.Fatal(err)
				}
				if d := s.take(key, limit, 1, 1); !d.Allowed {
					s.Errorf("%s, %v: after a reset: %+v", key, limit, d)
				}
			}
		}
	}
}

func (s *suite) pause(pauser rate.Pauser, key string, length time.Duration) {
	s.Helper()
	if _, err := pauser.Pause(s.Context(), s.session, s.limiter, key, length, rate.Relaxed); err != nil {
		s.Fatal(err)
	}
}

// leased takes a lease of the bucket, if the strategy can.
func (s *suite) leased(key string, limit rate.Limit) {
	s.Helper()
	leaser, able := s.strategy.(rate.Leaser)
	if !able {
		return
	}
	if _, err := leaser.Lease(s.Context(), s.session, s.leaseOf(key, limit)); err != nil {
		s.Fatal(err)
	}
}

func (s *suite) leaseOf(key string, limit rate.Limit) rate.LeaseRequest {
	return rate.LeaseRequest{Limiter: s.limiter, Key: key, Limit: limit, Tokens: 2, Share: 1, TTL: time.Minute}
}

// nothingBefore a time is granted to anybody who asks for a token of the key.
func (s *suite) nothingBefore(until time.Time, key string, limit rate.Limit) {
	s.Helper()
	one, other := s.ask(key, limit, 1, 1), s.ask(key+" beside", limit, 1, 1)
	with := func(change func(*rate.Request)) rate.Request {
		r := one
		change(&r)
		return r
	}
	ways := map[string][]rate.Request{
		"alone":      {one},
		"a peek":     {with(func(r *rate.Request) { r.Tokens = 0 })},
		"of several": {one, other},
		"in parts":   {with(func(r *rate.Request) { r.Tokens = 2 })},
		"twice":      {one, one},
		"ahead":      {with(func(r *rate.Request) { r.Ahead = 30 * time.Minute })},
		"a group":    grouped([]rate.Request{other, one}),
		"an ID":      {with(func(r *rate.Request) { r.ID, r.IDTTL = "id", time.Hour })},
		"or a block": {with(func(r *rate.Request) { block := blocking(1000); r.Block = &block })},
	}
	for way, requests := range ways {
		if slices.ContainsFunc(requests, func(r rate.Request) bool { return !s.can(r) }) {
			continue
		}
		for i, d := range s.takeAll(s.session, requests...) {
			switch ends := d.At.Add(d.RetryAfter); {
			case requests[i].Key != key:
			case d.Granted > 0 || d.Allowed || d.Remaining > 0 || ends.Before(until):
				s.Errorf("%s, %v, %s: %+v, paused until %v", key, limit, way, d, until)
			case limit.Calendar == "" && ends.After(until.Add(5*time.Second)): // a lease counts as spent
				s.Errorf("%s, %v, %s: told %v, paused until %v", key, limit, way, ends, until)
			}
		}
	}
	if leaser, able := s.strategy.(rate.Leaser); able && limit.Calendar == "" {
		if lease, err := leaser.Lease(s.Context(), s.session, s.leaseOf(key, limit)); err != nil || lease.Tokens > 0 {
			s.Errorf("%s, %v: a lease: %+v, %v", key, limit, lease, err)
		}
	}
}
