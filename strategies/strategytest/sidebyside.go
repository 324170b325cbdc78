package strategytest

import (
	"math/rand/v2"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Two versions of a limit side by side, as during a rolling deploy: 16 callers of two
// processes, half of them with each version. Together they are never granted more than the
// looser burst and the looser rate allow.
func sideBySide(s *suite) {
	sessions := []rate.Session{s.session, s.another}
	for _, limits := range [][2]rate.Limit{
		{rate.PerSecond(100).WithBurst(10), rate.PerSecond(200).WithBurst(10)},
		{rate.PerSecond(100).WithBurst(100), rate.PerSecond(100).WithBurst(10)},
		{rate.PerSecond(500).WithBurst(3), rate.PerSecond(20).WithBurst(200)},
		{rate.PerSecond(997).WithBurst(50), slow(60)},
		{rate.Every(20 * time.Millisecond), rate.Every(30 * time.Millisecond)},
	} {
		if s.strategy.Check(&rate.Request{Limit: limits[0]}) != nil || s.strategy.Check(&rate.Request{Limit: limits[1]}) != nil {
			continue
		}
		key := limits[0].String() + " beside " + limits[1].String()
		all := s.underLoad(16, 150*time.Millisecond, func(i int, random *rand.Rand, recorded histories) (int64, error) {
			r := s.ask(key, limits[i%2], 1, 1)
			if r.Limit.Burst > 1 {
				r.Tokens = 1 + random.Int64N(3)
				r.Unit = 1 + random.Int64N(r.Tokens)
			}
			return s.recordedTake(sessions[i/2%2], []rate.Request{r}, recorded)
		})
		s.neverOver(key, all, limits[0], limits[1])
	}
}

// A lowered limit denies nobody for longer than the longer of the two windows, even if
// other callers ask meanwhile.
func loweredLimit(s *suite) {
	const window = 100 * time.Millisecond
	large := s.needs(rate.Limit{Tokens: 1000, Period: window, Burst: 1000})
	small := rate.Limit{Tokens: 2, Period: window, Burst: 2}
	emptied := s.take("k", large, 1000, 1000)
	s.wants(emptied, 1000, 0)
	due := emptied.At.Add(window)
	before, granted := s.until("a grant of all that the lower limit has", func() rate.Decision {
		s.peek("k", large)
		return s.take("k", small, 2, 2)
	}, func(d rate.Decision) bool { return d.Allowed })
	s.onTime(before, granted, due, 2*time.Microsecond)
}

// After a change of the limit a denial says when to retry as truly as before.
func retryAfterAChange(s *suite) {
	for name, c := range map[string]struct{ before, after rate.Limit }{
		"much slower":         {rate.PerSecond(10).WithBurst(1), rate.Every(1000 * 24 * time.Hour)},
		"much faster":         {rate.Every(1000 * 24 * time.Hour), rate.Every(50 * time.Millisecond)},
		"a little slower":     {rate.Every(40 * time.Millisecond), rate.Every(60 * time.Millisecond)},
		"a little faster":     {rate.Every(60 * time.Millisecond), rate.Every(40 * time.Millisecond)},
		"much slower, burst":  {rate.PerSecond(100).WithBurst(10), rate.Every(1000 * 24 * time.Hour).WithBurst(10)},
		"smaller":             {rate.PerSecond(100).WithBurst(10), rate.PerSecond(100).WithBurst(3)},
		"slower and larger":   {rate.PerSecond(100).WithBurst(10), rate.PerSecond(30).WithBurst(12)},
		"uneven, and smaller": {rate.PerSecond(97).WithBurst(10), rate.PerSecond(113).WithBurst(4)},
	} {
		if s.strategy.Check(&rate.Request{Limit: c.before}) != nil || s.strategy.Check(&rate.Request{Limit: c.after}) != nil {
			continue
		}
		all := c.before.Burst
		s.take(name, c.before, all, all)
		denied := s.take(name, c.after, 1, 1)
		if denied.Allowed {
			continue // granted from the additional tokens of a larger burst
		}
		due, full := denied.At.Add(denied.RetryAfter), denied.At.Add(denied.ResetAfter)
		if denied.RetryAfter <= 0 || full.Before(due) {
			s.Errorf("%s: %+v", name, denied)
		}
		// All are due soon in a bucket: since the take, the tokens flow back at the faster rate. A
		// strategy without bursts may keep the interval that it has promised.
		if _, interval := s.strategy.Check(&rate.Request{Limit: slow(10)}).(*rate.LimitError); interval && denied.RetryAfter > time.Second { //nolint:errorlint // as Check returns it
			continue
		}
		if denied.RetryAfter > time.Second || c.after.Burst == 1 && !full.Equal(due) {
			s.Errorf("%s: %+v", name, denied)
			continue
		}
		before, granted := s.until(name+": a grant", func() rate.Decision { return s.take(name, c.after, 1, 1) },
			func(d rate.Decision) bool { return d.Allowed })
		s.onTime(before, granted, due, 0)
	}
}
