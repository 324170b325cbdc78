package strategytest

import (
	"slices"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// row of the table of conformance: what is asked of one bucket, and what must be decided. The
// limit that is asked with changes from part to part. Beside what a row says, every decision of
// the first part is compared with the rule of a bucket, see [account].
type row struct {
	name  string
	parts []part
}

type part struct {
	limit rate.Limit
	steps []step
}

// step asks for tokens in units, at a time, and says how many of them must be granted and how
// many must be left then. Zero tokens are a peek.
type step struct {
	at            time.Duration
	tokens, unit  int64
	granted, left int64
}

// Times of a step: it is asked once, or again and again until it is allowed. That must be when so
// much time has passed since the row's first decision (30 * time.Millisecond), or when the rule
// says.
const (
	now        time.Duration = 0
	eventually time.Duration = -1
)

// some: one at least of the tokens granted, or any number of those that are left.
const some = -1

// slow refills so slowly that nothing comes back during a test.
func slow(burst int64) rate.Limit {
	return rate.Every(1000 * time.Hour).WithBurst(burst)
}

const (
	ms   = time.Millisecond
	year = 365 * 24 * time.Hour
)

// rows about a limit that does not change. A strategy without bursts skips those that need one.
var rows = []row{
	{"BurstIsGrantedAtOnceAndNoMore", []part{{slow(5), []step{
		{now, 1, 1, 1, 4}, {now, 1, 1, 1, 3}, {now, 1, 1, 1, 2}, {now, 1, 1, 1, 1}, {now, 1, 1, 1, 0},
		{now, 1, 1, 0, 0}, {now, 1, 1, 0, 0}, {now, 1, 1, 0, 0},
	}}}},
	{"CostIsAllOrNothing", []part{{slow(5), []step{{now, 3, 3, 3, 2}, {now, 3, 3, 0, 2}, {now, 2, 2, 2, 0}}}}},
	{"AllOfABurstAtOnce", []part{{slow(5), []step{{now, 5, 5, 5, 0}}}}},
	{"UnitGrantsWholeMultiples", []part{{slow(7), []step{{now, 10, 2, 6, 1}, {now, 10, 2, 0, 1}, {now, 10, 1, 1, 0}}}}},
	{"NoMoreThanTheTokensAskedFor", []part{{slow(7), []step{{now, 5, 2, 4, 3}}}}},
	{"MoreTokensThanAnyBucketHas", []part{{slow(7), []step{{now, 1 << 60, 1, 7, 0}}}}},
	{"PeekTakesNothing", []part{{slow(1), []step{
		{now, 0, 1, 0, 1}, {now, 0, 1, 0, 1}, {now, 0, 1, 0, 1}, {now, 1, 1, 1, 0}, {now, 0, 1, 0, 0}, {now, 1, 1, 0, 0},
	}}}},
	{"PeekForSeveral", []part{{slow(5), []step{{now, 2, 2, 2, 3}, {now, 0, 0, 0, 3}, {now, 0, 3, 0, 3}, {now, 0, 4, 0, 3}}}}},

	{"OnePerPeriodIsTheWriteUpsRule", []part{{rate.Every(20 * ms), slices.Concat(
		[]step{{now, 1, 1, 1, 0}, {20 * ms, 1, 1, 1, 0}}, slices.Repeat([]step{{eventually, 1, 1, 1, 0}}, 8))}}},
	{"TheNextOfOne", []part{{rate.PerSecond(17).WithBurst(1), []step{{now, 1, 1, 1, 0}, {58_823_530, 1, 1, 1, 0}}}}},
	{"TheNextOfFive", []part{{rate.PerSecond(70).WithBurst(5), []step{{now, 5, 5, 5, 0}, {14_285_715, 1, 1, 1, some}, {eventually, 2, 2, 2, some}}}}},
	{"AllOfFive", []part{{rate.PerSecond(70).WithBurst(5), []step{{now, 5, 5, 5, 0}, {71_428_575, 5, 5, 5, some}}}}},
	{"AFullBucketOfOne", []part{{rate.Every(30 * ms), []step{{now, 1, 1, 1, 0}, {30 * ms, 0, 1, 0, 1}}}}},
	{"AFullBucketOfTen", []part{{rate.PerSecond(300).WithBurst(10), []step{{now, 10, 10, 10, 0}, {33_333_340, 0, 10, 0, 10}}}}},

	{"OnePerYear", []part{{rate.Every(year), []step{{now, 1, 1, 1, 0}, {now, 1, 1, 0, 0}}}}},
	{"OnePerYearFor200Years", []part{{rate.Every(year).WithBurst(200), []step{{now, 200, 200, 200, 0}, {now, 200, 200, 0, 0}}}}},
	{"ABillionPerSecondOneAtATime", []part{{rate.PerSecond(rate.MaxRate).WithBurst(1), []step{{now, 1, 1, 1, 0}, {eventually, 1, 1, 1, some}}}}},
	// A thousand tokens come back each microsecond, to the token.
	{"ABillionPerSecond", []part{{rate.PerSecond(rate.MaxRate), []step{{now, rate.MaxRate, rate.MaxRate, rate.MaxRate, 0}, {now, rate.MaxRate, 1, some, some}}}}},
	// A token of this rate takes no whole number of microseconds: the fraction of a microsecond is
	// neither dropped nor credited twice.
	{"UnevenRatesLoseNothing", []part{{rate.Limit{Tokens: 997, Period: 1300 * ms, Burst: 1500}, slices.Concat(
		[]step{{now, 1500, 1500, 1500, 0}}, slices.Repeat([]step{{eventually, 1500, 1, some, some}}, 80))}}},
}

// changes of the limit: what was used stays used.
var changes = []row{
	{"ARaisedLimit", []part{{slow(10), []step{{now, 4, 4, 4, 6}}}, {slow(20), []step{{now, 1, 1, 1, 15}}}}},
	{"ARaisedLimitTakesEffectAtOnce", []part{{slow(10), []step{{now, 10, 10, 10, 0}, {now, 1, 1, 0, 0}}}, {slow(1000), []step{{now, 990, 1, 990, 0}, {now, 1, 1, 0, 0}}}}},
	{"ALoweredLimit", []part{{slow(10), []step{{now, 8, 8, 8, 2}}}, {slow(3), []step{{now, 1, 1, 0, 0}}}}},
	{"AnEmptiedBucketRefillsByTheNewLimit", []part{{slow(10), []step{{now, 10, 10, 10, 0}}}, {rate.Every(ms).WithBurst(2), []step{{eventually, 1, 1, 1, some}}}}},
	{"AFasterRate", []part{{slow(10), []step{{now, 4, 4, 4, 6}}}, {rate.PerHour(7).WithBurst(10), []step{{now, 1, 1, 1, 5}}}, {slow(10), []step{{now, 1, 1, 1, 4}}}}},
	{"BeforeTheChangeTokensCameBackAtTheOldRate", []part{{rate.Every(ms).WithBurst(10), []step{{now, 10, 10, 10, 0}, {10 * ms, 0, 10, 0, 10}}}, {slow(10), []step{{now, 10, 10, 10, 0}}}}},
}

// tests of the rows.
func tests(rows []row) (list []test) {
	for _, r := range rows {
		list = append(list, test{r.name, func(s *suite) { s.follow(r.parts) }})
	}
	return list
}

// follow the parts of a row, with one bucket.
func (s *suite) follow(parts []part) {
	for _, part := range parts {
		s.needs(part.limit)
	}
	var first time.Time
	account := account{suite: s, limit: parts[0].limit}
	for p, part := range parts {
		for i, step := range part.steps {
			ask := func() rate.Decision {
				d := s.take("k", part.limit, step.tokens, step.unit)
				if p == 0 { // what is used under one limit comes back by two rules under another
					account.check(d, step.tokens, step.unit)
				}
				return d
			}
			var d rate.Decision
			if step.at == now {
				d = ask()
			} else {
				var before rate.Decision
				before, d = s.until("an allowed step", ask, func(d rate.Decision) bool { return d.Allowed })
				if step.at != eventually {
					s.onTime(before, d, first.Add(step.at), 0)
				}
			}
			if first.IsZero() {
				first = d.At
			}
			allowed := d.Granted > 0 || step.tokens == 0 && d.Remaining >= step.unit
			if step.granted == some && d.Granted == 0 || step.granted != some && d.Granted != step.granted ||
				step.left != some && d.Remaining != step.left || d.Allowed != allowed || d.Contended || d.Delay != 0 {
				s.Errorf("step %d, %+v with %v: %+v", i, step, part.limit, d)
			}
		}
	}
}

// onTime checks that something was allowed when it was due, and not before: before is the last
// denial, if there was one. slack is for a due time that is known less exactly.
func (s *suite) onTime(before, allowed rate.Decision, due time.Time, slack time.Duration) {
	s.Helper()
	if allowed.At.Before(due) {
		s.Errorf("allowed %v too early", due.Sub(allowed.At))
	}
	if !before.At.IsZero() && !before.At.Before(due.Add(slack)) {
		s.Errorf("denied %v after it was due", before.At.Sub(due))
	}
}

// account of one bucket under one limit, of which the test is the only caller: by the rule, a
// bucket is full again when all that was granted has come back, a token at a time.
type account struct {
	*suite
	limit rate.Limit
	full  time.Time
}

// check the next decision against the rule: no token is lost and none is there twice, a denial was
// due, and all times are true.
func (a *account) check(d rate.Decision, tokens, unit int64) {
	a.Helper()
	if d.At.IsZero() || d.At.Location() != time.UTC {
		a.Errorf("At is %v: want the database's time in UTC", d.At)
	}
	if a.full.Before(d.At) {
		a.full = d.At
	}
	there := max(0, int64((a.limit.Window()-a.full.Sub(d.At))/a.limit.Token()))
	if d.Granted+d.Remaining != there || !d.Allowed && there >= unit || d.Granted%max(1, unit) != 0 || d.Granted > tokens {
		a.Errorf("%d tokens were there, and %d were wanted in units of %d: %+v", there, tokens, unit, d)
	}
	a.full = a.full.Add(time.Duration(d.Granted) * a.limit.Token())
	a.says("ResetAfter", d.ResetAfter, a.full.Sub(d.At))
	a.says("RetryAfter", d.RetryAfter, a.full.Add(-a.limit.Window()+time.Duration(unit)*a.limit.Token()).Sub(d.At))
}

// says checks a time in a decision, which is rounded up to the clock's microsecond.
func (a *account) says(what string, got, want time.Duration) {
	a.Helper()
	if off := got - max(0, want); off < 0 || off > time.Microsecond {
		a.Errorf("%s is %v, want %v", what, got, want)
	}
}
