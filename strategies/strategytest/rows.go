package strategytest

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies/audit"
	"github.com/pglimit/ratelimit/strategies/internal/warmup"
)

// Short names keep a row on a line.
const (
	now        = Now
	eventually = Eventually
	some       = Some
)

// slow refills so slowly that nothing comes back during a test.
func slow(burst int64) rate.Limit {
	return rate.Every(1000 * time.Hour).WithBurst(burst)
}

const (
	ms   = time.Millisecond
	year = 365 * 24 * time.Hour
)

// always has the rows that hold for every rule: nothing comes back meanwhile. A strategy without bursts skips
// those that need one.
var always = []Row{
	{"BurstIsGrantedAtOnceAndNoMore", []Part{{slow(5), []Step{
		{now, 1, 1, 1, 4}, {now, 1, 1, 1, 3}, {now, 1, 1, 1, 2}, {now, 1, 1, 1, 1}, {now, 1, 1, 1, 0},
		{now, 1, 1, 0, 0}, {now, 1, 1, 0, 0}, {now, 1, 1, 0, 0},
	}}}},
	{"CostIsAllOrNothing", []Part{{slow(5), []Step{{now, 3, 3, 3, 2}, {now, 3, 3, 0, 2}, {now, 2, 2, 2, 0}}}}},
	{"AllOfABurstAtOnce", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}}}}},
	{"UnitGrantsWholeMultiples", []Part{{slow(7), []Step{{now, 10, 2, 6, 1}, {now, 10, 2, 0, 1}, {now, 10, 1, 1, 0}}}}},
	{"NoMoreThanTheTokensAskedFor", []Part{{slow(7), []Step{{now, 5, 2, 4, 3}}}}},
	{"MoreTokensThanAnyBucketHas", []Part{{slow(7), []Step{{now, 1 << 60, 1, 7, 0}}}}},
	{"PeekTakesNothing", []Part{{slow(1), []Step{
		{now, 0, 1, 0, 1}, {now, 0, 1, 0, 1}, {now, 0, 1, 0, 1}, {now, 1, 1, 1, 0}, {now, 0, 1, 0, 0}, {now, 1, 1, 0, 0},
	}}}},
	{"PeekForSeveral", []Part{{slow(5), []Step{{now, 2, 2, 2, 3}, {now, 0, 0, 0, 3}, {now, 0, 3, 0, 3}, {now, 0, 4, 0, 3}}}}},
}

// rows of token buckets, about a limit that does not change.
var rows = []Row{
	{"OnePerPeriodIsTheWriteUpsRule", []Part{{rate.Every(20 * ms), slices.Concat(
		[]Step{{now, 1, 1, 1, 0}, {20 * ms, 1, 1, 1, 0}}, slices.Repeat([]Step{{eventually, 1, 1, 1, 0}}, 8))}}},
	{"TheNextOfOne", []Part{{rate.PerSecond(17).WithBurst(1), []Step{{now, 1, 1, 1, 0}, {58_823_530, 1, 1, 1, 0}}}}},
	{"TheNextOfFive", []Part{{rate.PerSecond(70).WithBurst(5), []Step{{now, 5, 5, 5, 0}, {14_285_715, 1, 1, 1, some}, {eventually, 2, 2, 2, some}}}}},
	{"AllOfFive", []Part{{rate.PerSecond(70).WithBurst(5), []Step{{now, 5, 5, 5, 0}, {71_428_575, 5, 5, 5, some}}}}},
	{"AFullBucketOfOne", []Part{{rate.Every(30 * ms), []Step{{now, 1, 1, 1, 0}, {30 * ms, 0, 1, 0, 1}}}}},
	{"AFullBucketOfTen", []Part{{rate.PerSecond(300).WithBurst(10), []Step{{now, 10, 10, 10, 0}, {33_333_340, 0, 10, 0, 10}}}}},

	{"OnePerYear", []Part{{rate.Every(year), []Step{{now, 1, 1, 1, 0}, {now, 1, 1, 0, 0}}}}},
	{"OnePerYearFor200Years", []Part{{rate.Every(year).WithBurst(200), []Step{{now, 200, 200, 200, 0}, {now, 200, 200, 0, 0}}}}},
	{"ABillionPerSecondOneAtATime", []Part{{rate.PerSecond(rate.MaxRate).WithBurst(1), []Step{{now, 1, 1, 1, 0}, {eventually, 1, 1, 1, some}}}}},
	// A thousand tokens come back each microsecond, to the token.
	{"ABillionPerSecond", []Part{{rate.PerSecond(rate.MaxRate), []Step{{now, rate.MaxRate, rate.MaxRate, rate.MaxRate, 0}, {now, rate.MaxRate, 1, some, some}}}}},
	// A token of this rate takes no whole number of microseconds: the fraction of a microsecond is
	// neither dropped nor credited twice.
	{"UnevenRatesLoseNothing", []Part{{rate.Limit{Tokens: 997, Period: 1300 * ms, Burst: 1500}, slices.Concat(
		[]Step{{now, 1500, 1500, 1500, 0}}, slices.Repeat([]Step{{eventually, 1500, 1, some, some}}, 80))}}},
}

// changes of the limit: what was used stays used.
var changes = []Row{
	{"ARaisedLimit", []Part{{slow(10), []Step{{now, 4, 4, 4, 6}}}, {slow(20), []Step{{now, 1, 1, 1, 15}}}}},
	{"ARaisedLimitTakesEffectAtOnce", []Part{{slow(10), []Step{{now, 10, 10, 10, 0}, {now, 1, 1, 0, 0}}}, {slow(1000), []Step{{now, 990, 1, 990, 0}, {now, 1, 1, 0, 0}}}}},
	{"ALoweredLimit", []Part{{slow(10), []Step{{now, 8, 8, 8, 2}}}, {slow(3), []Step{{now, 1, 1, 0, 0}}}}},
	{"AnEmptiedBucketRefillsByTheNewLimit", []Part{{slow(10), []Step{{now, 10, 10, 10, 0}}}, {rate.Every(ms).WithBurst(2), []Step{{eventually, 1, 1, 1, some}}}}},
	{"AFasterRate", []Part{{slow(10), []Step{{now, 4, 4, 4, 6}}}, {rate.PerHour(7).WithBurst(10), []Step{{now, 1, 1, 1, 5}}}, {slow(10), []Step{{now, 1, 1, 1, 4}}}}},
	{"BeforeTheChangeTokensCameBackAtTheOldRate", []Part{{rate.Every(ms).WithBurst(10), []Step{{now, 10, 10, 10, 0}, {10 * ms, 0, 10, 0, 10}}}, {slow(10), []Step{{now, 10, 10, 10, 0}}}}},
}

func fivePer(period time.Duration) rate.Limit { return rate.Per(5, period) }

// windowRows are of a key that is never granted more than Limit.Burst in any Limit.Window.
var windowRows = []Row{
	// A token bucket would grant one every 3 ms, and the weighted counter 199 within some 300 ms.
	{"AllOfAWindowComesBackWhenItIsOver", []Part{{rate.Per(100, 300*ms), []Step{{now, 100, 100, 100, 0}, {300 * ms, 1, 1, 1, 99}, {now, 99, 99, 99, some}}}}}, // and no more: Check
	{"OnePerPeriodIsTheWriteUpsRule", []Part{{rate.Every(20 * ms), []Step{{now, 1, 1, 1, 0}, {20 * ms, 1, 1, 1, 0}, {eventually, 1, 1, 1, 0}}}}},
	{"ANewWindowHasAllAtOnce", []Part{{fivePer(40 * ms), []Step{{now, 5, 5, 5, 0}, {40 * ms, 0, 5, 0, 5}, {now, 5, 5, 5, 0}}}}},

	{"ARaisedLimit", []Part{{slow(10), []Step{{now, 4, 4, 4, 6}}}, {slow(20), []Step{{now, 1, 1, 1, 15}}}}},
	{"ARaisedLimitTakesEffectAtOnce", []Part{{slow(10), []Step{{now, 10, 10, 10, 0}, {now, 1, 1, 0, 0}}}, {slow(1000), []Step{{now, 990, 1, 990, 0}, {now, 1, 1, 0, 0}}}}},
	{"ALoweredLimit", []Part{{slow(10), []Step{{now, 8, 8, 8, 2}}}, {slow(3), []Step{{now, 1, 1, 0, 0}}}, {slow(10), []Step{{now, 3, 1, 2, 0}}}}},
	{"AShorterWindow", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}}}, {fivePer(50 * ms), []Step{{50 * ms, 5, 5, 5, 0}}}}},
	{"ALongerWindow", []Part{{fivePer(50 * ms), []Step{{now, 5, 5, 5, 0}}}, {slow(5), []Step{{50 * ms, 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
	{"TheLongerWindowIsNotForgottenMeanwhile", []Part{
		{slow(5), []Step{{now, 2, 2, 2, 3}}}, {fivePer(30 * ms), []Step{{eventually, 5, 5, 5, 0}, {eventually, 5, 5, 5, 0}}}, {slow(5), []Step{{eventually, 3, 3, 3, 0}, {now, 1, 1, 0, 0}}},
	}},
}

// warmUpRows are of a key that grants a burst when it is free, at a price that falls while it is in use.
func warmUpRows(rule warmup.Rule) []Row {
	// The cost of the first tokens of a cold key.
	cold := func(limit rate.Limit, n int64) time.Duration {
		return time.Duration(warmup.State{}.Take(rule, limit, 0, n).FreeNS)
	}
	one, five := rate.Every(10*ms), rate.Every(5*ms).WithBurst(5)
	return []Row{
		{"ABurstAtOnce", []Part{{slow(5), []Step{{now, 5, 5, 5, 0}, {now, 1, 1, 0, 0}, {now, 5, 1, 0, 0}}}}},
		{"APartOfABurst", []Part{{slow(5), []Step{{now, 2, 2, 2, 0}, {now, 1, 1, 0, 0}}}}},
		{"UnitsOfABurst", []Part{{slow(7), []Step{{now, 10, 2, 6, 0}, {now, 10, 2, 0, 0}, {now, 10, 1, 0, 0}}}}},
		{"UnitsThatAreAskedFor", []Part{{slow(7), []Step{{now, 5, 2, 4, 0}}}}},
		{"APeekForABurst", []Part{{slow(5), []Step{{now, 0, 5, 0, 5}, {now, 2, 2, 2, 0}, {now, 0, 1, 0, 0}}}}},

		{"ThePriceOfACold", []Part{{one, []Step{{now, 1, 1, 1, 0}, {cold(one, 1), 1, 1, 1, 0}}}}},
		{"ThePriceOfSeveral", []Part{{five, []Step{{now, 3, 3, 3, 0}, {cold(five, 3), 0, 5, 0, 5}}}}},
		{"OneAfterAnother", []Part{{rate.Every(2 * ms), slices.Repeat([]Step{{eventually, 1, 1, 1, 0}}, 8)}}},

		{"WhatWasGrantedIsPaidForUnderItsLimit", []Part{{slow(10), []Step{{now, 1, 1, 1, 0}}}, {rate.Every(ms), []Step{{now, 1, 1, 0, 0}}}}},
		{"ASlowerLimitPaysLater", []Part{{one, []Step{{now, 1, 1, 1, 0}}}, {slow(5), []Step{{cold(one, 1), 5, 5, 5, 0}, {now, 1, 1, 0, 0}}}}},
	}
}

// tests of the rows.
func tests(rows []Row) (list []test) {
	for _, r := range rows {
		list = append(list, test{r.Name, func(s *suite) { s.follow(r.Parts) }})
	}
	return list
}

// follow the parts of a row, with one bucket.
func (s *suite) follow(parts []Part) {
	for _, part := range parts {
		s.needs(rate.Request{Limit: part.Limit})
		if s.table.Whole && slices.ContainsFunc(part.Steps, func(step Step) bool { return step.Granted > 0 && step.Left > 0 }) {
			s.Skip("about parts of a burst")
		}
	}
	w, foretold := s.walk(s.session, 0), s.foretold()
	var first time.Time
	var events []audit.Event
	for p, part := range parts {
		for i, step := range part.Steps {
			ask := func() rate.Decision {
				r := s.ask("k", part.Limit, step.Tokens, step.Unit)
				d := s.takeAll(s.session, r)[0]
				if p == 0 { // what is used under one limit comes back by two rules under another
					foretold(r, d)
				}
				if s.fillsAsATokenBucket() {
					if d.Granted > 0 { // what came back while it decided may be left
						r.Tokens = d.Granted
					}
					w.decides(r, d, false)
				} else if p == 0 {
					events = append(events, audit.FromDecision(r.Tokens, r.Unit, d))
				}
				return d
			}
			var d rate.Decision
			if step.At == Now {
				d = ask()
			} else {
				var before rate.Decision
				before, d = s.until("an allowed step", ask, func(d rate.Decision) bool { return d.Allowed })
				if step.At != Eventually {
					if due := first.Add(step.At); d.At.Before(due) || !before.At.IsZero() && !before.At.Before(due) {
						s.Errorf("allowed %v after it was due, and the last denial was %v after that", d.At.Sub(due), before.At.Sub(due))
					}
				}
			}
			if first.IsZero() {
				first = d.At
			}
			allowed := d.Granted > 0 || step.Tokens == 0 && d.Remaining >= step.Unit
			if step.Granted == Some && d.Granted == 0 || step.Granted != Some && d.Granted != step.Granted ||
				step.Left != Some && d.Remaining != step.Left || d.Allowed != allowed || d.Contended || d.Delay != 0 {
				s.Errorf("step %d, %+v with %v: %+v", i, step, part.Limit, d)
			}
		}
	}
	if report := s.table.check(parts[0].Limit, events); !report.OK() {
		s.Error(report)
	}
}

// foretold returns a check of the decisions about one bucket under one limit, of which the test is the
// only caller. By the strategy's rule each decision says what the next one finds: never tokens that
// are not there then, and never a denial of tokens that are.
func (s *suite) foretold() func(rate.Request, rate.Decision) {
	rule := s.strategy.Rule()
	var last rate.Decision
	var lastUnit int64
	return func(r rate.Request, d rate.Decision) {
		s.Helper()
		d.Limit = r.Limit // as the limiter completes it
		unit, before := max(1, r.Unit), last
		if !before.At.IsZero() {
			passed := d.At.Sub(before.At)
			told := rule.Later(before, lastUnit, unit, passed, 0)
			denied := rule.Denies(before, lastUnit, unit, passed)
			there := d.Granted + d.Remaining
			if s.table.Whole && d.Granted > 0 {
				there = told.Remaining
			}
			if told.Remaining > there || told.RetryAfter == 0 && !d.Allowed || denied && d.Allowed {
				s.Errorf("%+v says that %v later it is %+v (denied: %v), but it is %+v", before, passed, told, denied, d)
			}
		}
		last, lastUnit = d, unit
	}
}
