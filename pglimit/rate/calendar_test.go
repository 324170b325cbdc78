package rate_test

import (
	"errors"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestCalendarsAreReadAndWritten(t *testing.T) {
	t.Parallel()
	berlin := rate.PerMonth(10000).In("Europe/Berlin")
	for text, want := range map[string]rate.Limit{
		"1000/day fixed":                       rate.PerDay(1000).Fixed(),
		"1000/1day UTC":                        rate.PerDay(1000).Fixed(),
		"100/minute fixed":                     rate.PerMinute(100).Fixed(),
		"5/second UTC":                         rate.PerSecond(5).Fixed(),
		"60/hour America/St_Johns":             rate.PerHour(60).In("America/St_Johns"),
		"10000/month":                          rate.PerMonth(10000),
		"10000/month Europe/Berlin":            berlin,
		"10000/month from 15 Europe/Berlin":    berlin.From(15),
		"10000/month Europe/Berlin burst 8000": berlin.WithBurst(8000),
		"5/week from sunday fixed":             rate.Per(5, 7*24*time.Hour).FromWeekday(time.Sunday),
		"5/1year Etc/GMT+12":                   rate.PerYear(5).In("Etc/GMT+12"),
	} {
		got, err := rate.ParseLimit(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := rate.ParseLimit(got.String()); again != got || err != nil {
			t.Errorf("%s is written %s, which is read as %+v, %v", text, got, again, err)
		}
	}
	for field, limit := range map[string]rate.Limit{
		"Calendar": rate.Per(1, 2*time.Hour).Fixed(), "Period": {Tokens: 1, Burst: 1, Calendar: "day UTC", Period: time.Hour}, "Burst": rate.PerMonth(3).WithBurst(4),
	} {
		var bad *rate.LimitError
		if err := limit.Validate(); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%+v: %v, want an error of %s", limit, err, field)
		}
	}
	var bad *rate.LimitError
	if _, err := rate.PerDay(1).In("Europe/Nowhere").WindowEnd(time.Now()); !errors.As(err, &bad) {
		t.Errorf("a zone that is none: %v", err)
	}
}
