package rate

import (
	"fmt"
	"time"
)

// Limit is Tokens per Period, at most Burst at once: a bucket that holds Burst
// tokens, starts full and is refilled evenly. PerSecond(10).WithBurst(20) grants
// 20 at once to a key that was quiet, then one every 100 ms.
//
// The zero value is not a valid limit. Tokens and Period only set the rate: 60 per minute
// and 1 per second, with the same Burst, grant the same. The time of a token is rounded up
// to a whole nanosecond, see [Limit.Token].
type Limit struct {
	// Tokens is how many tokens are refilled in a Period. At least 1.
	Tokens int64

	// Period is the time in which Tokens are refilled. The rate is at most one token per
	// nanosecond. Rounding a token's time to a nanosecond may change it by at most 0.1 %:
	// any rate up to a million per second is allowed, and round ones above.
	Period time.Duration

	// Burst is the most that can be granted at once: the tokens of a full bucket. At least
	// 1. An empty bucket must be full again within MaxWindow.
	Burst int64

	// Calendar, unless it is empty, makes it a limit per window of the calendar: Burst tokens, which
	// all come back when a window ends, and none before. It names the window, perhaps its first
	// day, and the time zone: "day UTC", "month from 15 Europe/Berlin". Period is how long a window is
	// at most. [Limit.Fixed], [PerMonth], [PerYear], [Limit.In] and [Limit.From] set it.
	Calendar string
}

// MaxRate is the highest rate of a [Limit], in tokens per second: one per nanosecond.
const MaxRate = 1_000_000_000

// MaxWindow is the longest [Limit.Window], 200 years: a time that far ahead still fits the
// nanoseconds since 1970 that a row stores.
const MaxWindow = 200 * 365 * 24 * time.Hour

// PerSecond is a Limit of n tokens per second with a Burst of n.
func PerSecond(n int64) Limit { return Limit{Tokens: n, Period: time.Second, Burst: n} }

// PerMinute is a Limit of n tokens per minute with a Burst of n.
func PerMinute(n int64) Limit { return Limit{Tokens: n, Period: time.Minute, Burst: n} }

// PerHour is a Limit of n tokens per hour with a Burst of n.
func PerHour(n int64) Limit { return Limit{Tokens: n, Period: time.Hour, Burst: n} }

// Per is a Limit of n tokens per period with a Burst of n: Per(1000, 24*time.Hour).
func Per(n int64, period time.Duration) Limit { return Limit{Tokens: n, Period: period, Burst: n} }

// Every is a Limit of one token per d with a Burst of 1: grants are at least d apart.
func Every(d time.Duration) Limit { return Limit{Tokens: 1, Period: d, Burst: 1} }

// WithBurst returns the limit with another Burst.
func (l Limit) WithBurst(burst int64) Limit {
	l.Burst = burst
	return l
}

// Token is the time in which one token comes back: Period / Tokens, rounded up to the
// nanosecond. Three per second: 333,333,334 ns. With a Calendar it is 1 ns, which is how a row counts
// tokens. Defined for a valid Limit only.
func (l Limit) Token() time.Duration {
	if l.Calendar != "" {
		return 1
	}
	return (l.Period-1)/time.Duration(l.Tokens) + 1
}

// Window is the time in which an empty bucket fills: Burst × Token. With a Calendar that is as many
// nanoseconds as tokens. Defined for a valid Limit only.
func (l Limit) Window() time.Duration { return time.Duration(l.Burst) * l.Token() }

// Validate returns a [*LimitError] that names the field, its value and what is
// allowed, or nil.
func (l Limit) Validate() error {
	switch {
	case l.Tokens < 1:
		return &LimitError{l, "Tokens", fmt.Sprintf("is %d: it must be at least 1", l.Tokens)}
	case l.Period < 1:
		return &LimitError{l, "Period", fmt.Sprintf("is %v: it must be longer than zero", l.Period)}
	case l.Calendar == "" && l.Tokens > int64(l.Period):
		return &LimitError{l, "Tokens", fmt.Sprintf("is %d in %v: the rate must be at most %d tokens per second", l.Tokens, l.Period, MaxRate)}
	case l.Burst < 1:
		return &LimitError{l, "Burst", fmt.Sprintf("is %d: it must be at least 1 (Tokens, %d, is usual)", l.Burst, l.Tokens)}
	}
	if l.Calendar != "" {
		if err := l.validateCalendar(); err != nil {
			return err
		}
	}
	// Token × Tokens exceeds the Period by less than Tokens nanoseconds. If a token takes a
	// microsecond or more, that is at most a thousandth of the Period.
	token := l.Token()
	if missed := uint64(l.Tokens)*uint64(token) - uint64(l.Period); l.Calendar == "" && token < 1000 && missed > uint64(l.Period)/1000 {
		return &LimitError{l, "Period", fmt.Sprintf("is %v for %d tokens, which is no whole number of nanoseconds per token: use %v or %v",
			l.Period, l.Tokens, time.Duration(l.Tokens)*(token-1), time.Duration(l.Tokens)*token)}
	}
	if token > MaxWindow {
		return &LimitError{l, "Period", fmt.Sprintf("is %v for %d tokens: a token must come back within 200 years", l.Period, l.Tokens)}
	}
	if longest := int64(MaxWindow / token); l.Burst > longest {
		return &LimitError{l, "Burst", fmt.Sprintf("is %d, which take longer than 200 years to come back at this rate: it must be at most %d", l.Burst, longest)}
	}
	return nil
}
