package rate

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// limitText takes a limit apart: tokens, the number and the unit of the period, first day, time zone, burst.
// pglimit.request_ns has the same expression.
var limitText = regexp.MustCompile(`^ *([^ /]*)/([0-9]*)([^ ]*)` +
	`(?: +from +([a-z]+day|[0-9]+))?(?: +(fixed|` + zones + `))?(?: +burst +([^ ]+))? *$`)

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// units of a period. pglimit.period_ns_of has the same.
var units = map[string]time.Duration{
	"ns": time.Nanosecond,
	"ms": time.Millisecond, "millisecond": time.Millisecond, "milliseconds": time.Millisecond,
	"s": time.Second, "sec": time.Second, "second": time.Second, "seconds": time.Second,
	"m": time.Minute, "min": time.Minute, "minute": time.Minute, "minutes": time.Minute,
	"h": time.Hour, "hour": time.Hour, "hours": time.Hour,
	"day": day, "days": day, "week": week, "weeks": week,
}

// ParseLimit reads a limit as people write it, N/[n]unit [burst N]: "100/1m burst 20", "10/s", "1000/day", "1/36h".
// Without "burst N" the burst equals the tokens.
//
// The units are ms, s, m, h, day and week, or a word: millisecond, sec, second, min, minute, hour, or the plural of
// one; and ns, in which [Limit.String] writes a period that is no whole number of milliseconds. A day has 24 hours. The
// numbers are whole, and there are no sums: 1m30s is written 90s.
//
// A window of the calendar (second, minute, hour, day, week, month or year, see [Limit.Fixed]) is written with its
// time zone, or "fixed" for UTC: "1000/day fixed", "10000/month from 15 Europe/Berlin", "500/week from sunday fixed".
// A month and a year are always windows: "10000/month". The limit that it returns is valid.
func ParseLimit(text string) (Limit, error) {
	fail := func(why string, args ...any) (Limit, error) {
		return Limit{}, fmt.Errorf(`pglimit: limit %q: %s (write it like "100/1m burst 20")`, text, fmt.Sprintf(why, args...))
	}
	parts := limitText.FindStringSubmatch(text)
	if parts == nil {
		return fail(`it must be tokens/period, then perhaps "from 15", "fixed" or a time zone such as Europe/Berlin, ` +
			`then perhaps "burst 20"`)
	}
	tokens, period, unit, from, zone, burst := parts[1], parts[2]+parts[3], parts[3], parts[4], parts[5], parts[6]
	var l Limit
	var ok bool
	if l.Tokens, ok = parseWhole(tokens, 1); !ok {
		return fail("tokens %q is not a whole number", tokens)
	}
	if unit == "month" || unit == "year" || from != "" || zone != "" {
		i := slices.IndexFunc(calendars, func(c calendar) bool { return period == c.unit || period == "1"+c.unit })
		if i < 0 {
			return fail("period %q is no window of the calendar: write second, minute, hour, day, week, month or year", period)
		}
		if zone == "" || zone == "fixed" {
			zone = "UTC"
		}
		l.Period, l.Calendar = calendars[i].longest, calendarText(unit, from, zone)
	} else if ns, ok := parseWhole(cmp.Or(parts[2], "1"), units[unit]); ok {
		l.Period = time.Duration(ns)
	} else {
		return fail("period %q is not a whole number of ms, s, m, h, day or week such as 90s, nor month or year", period)
	}
	if l.Burst, ok = parseWhole(cmp.Or(burst, tokens), 1); !ok {
		return fail("burst %q is not a whole number", burst)
	}
	if err := l.Validate(); err != nil {
		return Limit{}, err
	}
	return l, nil
}

// String writes the limit as [ParseLimit] reads it: "100/1m burst 20", or
// "100/1m" where the burst equals the tokens.
func (l Limit) String() string {
	text := strconv.FormatInt(l.Tokens, 10) + "/"
	if l.Calendar == "" {
		text += formatPeriod(l.Period)
	} else if window, utc := strings.CutSuffix(l.Calendar, " UTC"); utc {
		text += window + " fixed"
	} else {
		text += l.Calendar
	}
	if l.Burst != l.Tokens {
		text += " burst " + strconv.FormatInt(l.Burst, 10)
	}
	return text
}

// parseWhole returns how much the digits are in these units. False if they are no digits, unit is 0, or it is too much.
func parseWhole(digits string, unit time.Duration) (int64, bool) {
	n, err := strconv.ParseUint(digits, 10, 64)
	return int64(n) * int64(unit), err == nil && unit > 0 && n <= math.MaxInt64/uint64(unit)
}

// formatPeriod writes the period in the largest unit of which it is a whole number, up to hours.
func formatPeriod(d time.Duration) string {
	unit := "ns"
	for _, larger := range []string{"ms", "s", "m", "h"} {
		if d%units[larger] == 0 {
			unit = larger
		}
	}
	return strconv.FormatInt(int64(d/units[unit]), 10) + unit
}
