package rate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// calendars are the windows that a Calendar may name, and the longest that each can be, which is the Period of its
// limits.
type calendar struct {
	unit    string
	longest time.Duration
}

var calendars = []calendar{
	{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}, {"day", day}, {"week", week}, {"month", 31 * day}, {"year", 366 * day},
}

var weekdays = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// monthDay is the day on which a month begins.
var monthDay = regexp.MustCompile(`^([1-9]|[12][0-9]|3[01])$`)

// zones is how a time zone is written. Abbreviations and offsets are left out: in Postgres, UTC+2 is west of UTC.
const zones = `UTC|Etc/[A-Za-z0-9+-]+|[A-Za-z_-]+(?:/[A-Za-z_-]+)+`

var zoneName = regexp.MustCompile(`^(?:` + zones + `)$`)

// ErrAheadInCalendar is what strategies say to a request that takes ahead under a limit with a Calendar.
var ErrAheadInCalendar = fmt.Errorf(
	"pglimit: a limit per window of the calendar gives nothing back before the window ends, so nothing can be reserved: use DoAll with a MaxWait, which asks again then, or Allow again after Decision.RetryAfter: %w", errors.ErrUnsupported)

// PerDay is a Limit of n tokens per 24 hours with a Burst of n. PerDay(n).Fixed() counts by the day of the calendar.
func PerDay(n int64) Limit { return Per(n, day) }

// PerMonth is a Limit of n tokens per month of the calendar, in UTC. See [Limit.In] and [Limit.From].
func PerMonth(n int64) Limit { return Per(n, 31*day).Fixed() }

// PerYear is a Limit of n tokens per year of the calendar, in UTC. See [Limit.In].
func PerYear(n int64) Limit { return Per(n, 366*day).Fixed() }

// Fixed returns the limit per window of the calendar, in UTC: of a second, minute, hour, day or week, if that is
// the Period. All tokens come back at the end of a window, and none before. So twice as many may be granted
// in a short time around that end. Burst is how many are granted in a window.
func (l Limit) Fixed() Limit {
	l.Calendar = "no window of " + l.Period.String()
	for _, c := range calendars {
		if c.longest == l.Period {
			l.Calendar = c.unit + " UTC"
		}
	}
	return l
}

// In returns the limit per window of the calendar in that time zone: "Europe/Berlin". The database must know it.
func (l Limit) In(zone string) Limit {
	if l.Calendar == "" {
		l = l.Fixed()
	}
	unit, from, _ := l.calendar()
	l.Calendar = calendarText(unit, from, zone)
	return l
}

// From returns the limit per month with windows that begin on that day, such as a billing day: 1 to 31. In a month with
// fewer days it is the last one.
func (l Limit) From(day int) Limit { return l.from(strconv.Itoa(day)) }

// FromWeekday returns the limit per week with windows that begin on that day, instead of on Monday.
func (l Limit) FromWeekday(day time.Weekday) Limit { return l.from(strings.ToLower(day.String())) }

func (l Limit) from(first string) Limit {
	if l.Calendar == "" {
		l = l.Fixed()
	}
	unit, _, zone := l.calendar()
	l.Calendar = calendarText(unit, first, zone)
	return l
}

func calendarText(unit, from, zone string) string {
	if from != "" {
		unit += " from " + from
	}
	return unit + " " + zone
}

// calendar takes the Calendar apart. from is empty if it is not given.
func (l Limit) calendar() (unit, from, zone string) {
	unit, zone, _ = strings.Cut(l.Calendar, " ")
	if rest, ok := strings.CutPrefix(zone, "from "); ok {
		from, zone, _ = strings.Cut(rest, " ")
	}
	return unit, from, zone
}

func (l Limit) validateCalendar() error {
	unit, from, zone := l.calendar()
	i := slices.IndexFunc(calendars, func(c calendar) bool { return c.unit == unit })
	bad := func(why string, args ...any) error { return &LimitError{l, "Calendar", fmt.Sprintf(why, args...)} }
	switch {
	case i < 0 || l.Calendar != calendarText(unit, from, zone):
		return bad("is %q: a window is a second, minute, hour, day, week, month or year (write it like %q)", l.Calendar, "month from 15 Europe/Berlin")
	case l.Period != calendars[i].longest:
		return &LimitError{l, "Period", fmt.Sprintf("is %v: with a Calendar of a %s it must be %v, its longest", l.Period, unit, calendars[i].longest)}
	case l.Burst > l.Tokens:
		return &LimitError{l, "Burst", fmt.Sprintf("is %d: of a window it must be at most Tokens, %d", l.Burst, l.Tokens)}
	case from == "":
	case unit == "week" && !slices.Contains(weekdays, from), unit == "month" && !monthDay.MatchString(from), unit != "week" && unit != "month":
		return bad("is %q: a week is from monday to sunday, a month from 1 to 31", l.Calendar)
	}
	if !zoneName.MatchString(zone) {
		return bad("is %q: its time zone must be UTC or a name such as Europe/Berlin", l.Calendar)
	}
	return nil
}

// WindowEnd is when the window of the Calendar ends in which that time lies, by the time zones that Go knows. The
// strategies ask the database instead, whose zones may be others. An unknown zone is a [*LimitError].
func (l Limit) WindowEnd(at time.Time) (time.Time, error) {
	unit, from, zone := l.calendar()
	location, err := time.LoadLocation(zone)
	if err != nil {
		return time.Time{}, &LimitError{l, "Calendar", fmt.Sprintf("is %q: %v", l.Calendar, err)}
	}
	at = at.In(location)
	year, month, today := at.Date()
	switch unit {
	case "second":
		return at.Truncate(time.Second).Add(time.Second), nil
	case "minute":
		return at.Truncate(time.Minute).Add(time.Minute), nil
	case "hour":
		return at.Add(time.Hour - time.Duration(at.Minute())*time.Minute - time.Duration(at.Second())*time.Second - time.Duration(at.Nanosecond())), nil
	case "day":
		today++
	case "week":
		first := max(0, slices.Index(weekdays, from))
		today += 7 - (int(at.Weekday())+6-first+7)%7
	case "month":
		n, _ := strconv.Atoi(from)
		first := func(month time.Month) int {
			return min(max(1, n), time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day())
		}
		if today >= first(month) {
			month++
		}
		today = first(month)
	case "year":
		year, month, today = year+1, time.January, 1
	}
	return firstOf(year, month, today, location), nil
}

// firstOf is the first moment of that date, which may have no midnight, or two.
func firstOf(year int, month time.Month, day int, location *time.Location) time.Time {
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	// An hour before the second midnight it is that date already; where there is none, Go may name a time before it.
	for at := time.Date(year, month, day, 0, 0, 0, 0, location).Add(-2 * time.Hour); ; at = at.Add(30 * time.Minute) {
		if y, m, d := at.Date(); !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date) {
			return at
		}
	}
}
