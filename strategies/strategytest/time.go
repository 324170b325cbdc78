package strategytest

import (
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func retryAfter(s *suite) {
	for _, limit := range []rate.Limit{
		rate.Every(30 * time.Millisecond),
		rate.PerSecond(17).WithBurst(1),
		rate.PerSecond(70).WithBurst(5),
	} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		all := limit.Burst
		key := limit.String()
		first := s.take(key, limit, all, all)
		for _, n := range []int64{1, all} {
			_, denied := s.until("a denial", func() rate.Decision { return s.take(key, limit, n, n) },
				func(d rate.Decision) bool { return !d.Allowed })
			if denied.RetryAfter <= 0 {
				s.Fatalf("%v: %+v: want a denial that says when to retry", limit, denied)
			}
			due := denied.At.Add(denied.RetryAfter)
			before, granted := s.until("a grant", func() rate.Decision { return s.take(key, limit, n, n) },
				func(d rate.Decision) bool { return d.Allowed })
			if granted.At.Before(due) {
				s.Errorf("%v: granted %v before RetryAfter", limit, due.Sub(granted.At))
			}
			if !before.At.IsZero() && !before.At.Before(due) {
				s.Errorf("%v: denied %v after RetryAfter", limit, before.At.Sub(due))
			}
			// Two denials differ only by rounding up to the clock's microsecond.
			if !before.At.IsZero() && before.At.Add(before.RetryAfter).Sub(due).Abs() > time.Microsecond {
				s.Errorf("%v: a later denial says %v, the first said %v", limit, before.At.Add(before.RetryAfter), due)
			}
		}
		if first.RetryAfter <= 0 {
			s.Errorf("%v: an emptied bucket has the next token in %v", limit, first.RetryAfter)
		}
	}
}

func resetAfter(s *suite) {
	for _, limit := range []rate.Limit{
		rate.Every(30 * time.Millisecond),
		rate.PerSecond(300).WithBurst(10),
	} {
		if s.strategy.Check(&rate.Request{Limit: limit}) != nil {
			continue
		}
		key := limit.String()
		taken := s.take(key, limit, limit.Burst, limit.Burst)
		interval := limit.Period * time.Duration(limit.Burst) / time.Duration(limit.Tokens)
		if off := taken.ResetAfter - interval; off < 0 || off > time.Microsecond {
			s.Errorf("%v: an emptied bucket is full in %v, want %v", limit, taken.ResetAfter, interval)
		}
		full := taken.At.Add(taken.ResetAfter)
		before, at := s.until("a full bucket", func() rate.Decision { return s.peek(key, limit) },
			func(d rate.Decision) bool { return d.ResetAfter == 0 })
		if at.At.Before(full) || !before.At.IsZero() && !before.At.Before(full) {
			s.Errorf("%v: full between %v and %v, want %v", limit, before.At, at.At, full)
		}
		if at.Remaining != limit.Burst {
			s.Errorf("%v: full with %d tokens", limit, at.Remaining)
		}
	}
}

func billionPerSecond(s *suite) {
	if one := rate.PerSecond(rate.MaxRate).WithBurst(1); s.strategy.Check(&rate.Request{Limit: one}) == nil {
		s.wants(s.take("one", one, 1, 1), 1, 0)
		s.until("a token", func() rate.Decision { return s.take("one", one, 1, 1) },
			func(d rate.Decision) bool { return d.Allowed })
	}
	limit := s.needs(rate.PerSecond(rate.MaxRate))
	first := s.take("all", limit, rate.MaxRate, rate.MaxRate)
	s.wants(first, rate.MaxRate, 0)
	if first.ResetAfter != time.Second {
		s.Errorf("full again in %v, want 1s", first.ResetAfter)
	}
	// A thousand tokens come back each microsecond, to the token.
	second := s.take("all", limit, rate.MaxRate, 1)
	// (Tokens of the last microseconds may be left: a strategy may plan before it decides.)
	if want := min(rate.MaxRate, second.At.Sub(first.At).Microseconds()*1000); second.Granted+second.Remaining != want || second.Granted == 0 {
		s.Errorf("%d tokens came back in %v, and %d are left, want %d", second.Granted, second.At.Sub(first.At), second.Remaining, want)
	}
}

func onePerYear(s *suite) {
	const year = 365 * 24 * time.Hour
	limit := s.needs(rate.Every(year))
	first := s.take("k", limit, 1, 1)
	s.wants(first, 1, 0)
	if first.ResetAfter != year {
		s.Errorf("full again in %v, want a year", first.ResetAfter)
	}
	denied := s.take("k", limit, 1, 1)
	s.wants(denied, 0, 0)
	if due := denied.At.Add(denied.RetryAfter); !due.Equal(first.At.Add(year)) {
		s.Errorf("the next is due at %v, want a year after %v", due, first.At)
	}
	if many := rate.Every(year).WithBurst(200); s.strategy.Check(&rate.Request{Limit: many}) == nil {
		all := s.take("many", many, 200, 200)
		s.wants(all, 200, 0)
		d := s.take("many", many, 200, 200)
		s.wants(d, 0, 0)
		if due := d.At.Add(d.RetryAfter); !due.Equal(all.At.Add(200 * year)) {
			s.Errorf("all of them are due at %v, want 200 years after %v", due, all.At)
		}
	}
}

// A token of this rate takes no whole number of microseconds: the fraction of a microsecond
// is neither dropped nor credited twice.
func unevenRates(s *suite) {
	const tokens, period, burst = 997, 1300 * time.Millisecond, 1500 // full in 1.96 s
	limit := s.needs(rate.Limit{Tokens: tokens, Period: period, Burst: burst})
	first := s.take("k", limit, burst, burst)
	granted, last := int64(0), first
	for last.At.Sub(first.At) < 100*time.Millisecond {
		d := s.take("k", limit, burst, 1)
		granted += d.Granted
		if d.At.Sub(last.At) > time.Second {
			s.Skip("this machine stalls for so long that the bucket may have been full in between")
		}
		last = d
	}
	if due := int64(last.At.Sub(first.At)) * tokens / int64(period); granted+last.Remaining != due || granted == 0 {
		s.Fatalf("%d tokens in %v, and %d are left; %d were due", granted, last.At.Sub(first.At), last.Remaining, due)
	}
}
