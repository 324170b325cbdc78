package rate_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestParseLimit(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, test := range []struct {
		text string
		want rate.Limit
		back string // what String makes of it
	}{
		{"100/1m burst 20", rate.PerMinute(100).WithBurst(20), "100/1m burst 20"},
		{"100/m", rate.PerMinute(100), "100/1m"},
		{"10/s burst 10", rate.PerSecond(10).WithBurst(10), "10/1s"},
		{"  10/1s   burst  5 ", rate.PerSecond(10).WithBurst(5), "10/1s burst 5"},
		{"010/01s burst 05", rate.PerSecond(10).WithBurst(5), "10/1s burst 5"},
		{"1/90s", rate.Every(90 * time.Second), "1/90s"},
		{"1/90m", rate.Every(90 * time.Minute), "1/90m"},
		{"1/120m", rate.Every(2 * time.Hour), "1/2h"},
		{"1/36h", rate.Every(36 * time.Hour), "1/36h"},
		{"1000/day", rate.PerDay(1000), "1000/24h"},
		{"5/14days", rate.Per(5, 14*day), "5/336h"},
		{"1/1500ms", rate.Every(1500 * time.Millisecond), "1/1500ms"},
		{"1/1500000ns", rate.Every(1500 * time.Microsecond), "1/1500000ns"},
		{"1/ns burst 7", rate.Every(time.Nanosecond).WithBurst(7), "1/1ns burst 7"},
		{"1000000000/s", rate.PerSecond(rate.MaxRate), "1000000000/1s"},
	} {
		got, err := rate.ParseLimit(test.text)
		if err != nil || got != test.want {
			t.Errorf("%q is %+v, %v; want %+v", test.text, got, err, test.want)
		}
		if back := got.String(); back != test.back {
			t.Errorf("%q is written %q, want %q", test.text, back, test.back)
		}
	}
}

// A unit is one of these words, in small letters, alone or behind a whole number.
func TestUnitsOfAPeriod(t *testing.T) {
	t.Parallel()
	for words, unit := range map[string]time.Duration{
		"ns": time.Nanosecond, "ms millisecond milliseconds": time.Millisecond, "s sec second seconds": time.Second,
		"m min minute minutes": time.Minute, "h hour hours": time.Hour, "day days": 24 * time.Hour, "week weeks": 7 * 24 * time.Hour,
	} {
		for word := range strings.FieldsSeq(words) {
			for number, n := range map[string]int64{"": 1, "1": 1, "15": 15} {
				if got, err := rate.ParseLimit("1/" + number + word); err != nil || got != rate.Every(time.Duration(n*int64(unit))) {
					t.Errorf("%s%s is %v, %v", number, word, got.Period, err)
				}
			}
			for _, bad := range []string{
				strings.ToUpper(word), strings.ToUpper(word[:1]) + word[1:], word + "x", word + "ss", "1 " + word, "1.5" + word,
				"1" + word + "1s", "-1" + word, "+1" + word, "1_0" + word, "\u00a0" + word,
			} {
				if got, err := rate.ParseLimit("1/" + bad); err == nil {
					t.Errorf("%s is %v", bad, got.Period)
				}
			}
		}
	}
}

func TestParseLimitErrors(t *testing.T) {
	t.Parallel()
	const shape = `it must be tokens/period, then perhaps "from 15", "fixed" or a time zone such as Europe/Berlin, then perhaps "burst 20"`
	for text, why := range map[string]string{
		"": shape, "10": shape, "10 burst 5": shape, "ten per second": shape, "10 / 1s": shape, "10/1 minute": shape, "10/day CET": shape,
		"10/month UTC+2": shape, "10/day from": shape, "10/day Fixed": shape, "10/day utc": shape, "10/day UTC from 15": shape,
		"10/1s burst": shape, "10/1s Burst 5": shape, "10/1s burst 5 burst 6": shape, "10/1s burst 5 fixed": shape, "10/1s\tburst 5": shape, "10/ s": shape, "10/1s \n": shape, "10/month From 3": shape, "10/day etc/GMT+1": shape,
		"10/1s\u00a0burst 5":       shape,
		"/1s":                      `tokens "" is not a whole number`,
		"\t1/1s":                   `tokens "\t1" is not a whole number`,
		"many/1s":                  `tokens "many" is not a whole number`,
		"1.5/1s":                   `tokens "1.5" is not a whole number`,
		"-1/1s":                    `tokens "-1" is not a whole number`,
		"+1/1s":                    `tokens "+1" is not a whole number`,
		"1_000/1s":                 `tokens "1_000" is not a whole number`,
		"\u00a01/1s":               `tokens "\u00a01" is not a whole number`,
		"\x00/\xff":                `tokens "\x00" is not a whole number`,
		"99999999999999999999/1s":  `tokens "99999999999999999999" is not a whole number`,
		"10/":                      `period "" is not a whole number of ms, s, m, h, day or week such as 90s, nor month or year`,
		"10/1s\n":                  `period "1s\n" is not`,
		"10/5":                     `period "5" is not`,
		"10/1M":                    `period "1M" is not`,
		"10/1m30s":                 `period "1m30s" is not`,
		"10/1.5h":                  `period "1.5h" is not`,
		"10/-1s":                   `period "-1s" is not`,
		"10/1d":                    `period "1d" is not`,
		"10/1w":                    `period "1w" is not`,
		"10/1us":                   `period "1us" is not`,
		"10/1\u00b5s":              `period "1µs" is not`,
		"10/1s/2":                  `period "1s/2" is not`,
		"10/2months":               `period "2months" is not`,
		"10/106752day":             `period "106752day" is not`, // more than 292 years
		"10/9999999999999999999s":  `period "9999999999999999999s" is not`,
		"10/2month":                `period "2month" is no window of the calendar: write second, minute, hour, day, week, month or year`,
		"10/90s fixed":             `period "90s" is no window`,
		"10/min Europe/Berlin":     `period "min" is no window`,
		"10/days from 3 fixed":     `period "days" is no window`,
		"10/1s burst lots":         `burst "lots" is not a whole number`,
		"10/1s burst -5":           `burst "-5" is not a whole number`,
		"10/1s burst 0x10":         `burst "0x10" is not a whole number`,
		"10/1s burst 5;":           `burst "5;" is not a whole number`,
		"10/1s burst 5\nand\nmore": `burst "5\nand\nmore" is not a whole number`,
	} {
		limit, err := rate.ParseLimit(text)
		if want := fmt.Sprintf("pglimit: limit %q: %s", text, why); err == nil || limit != (rate.Limit{}) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q is %+v, %v", text, limit, err)
		} else if !strings.HasSuffix(err.Error(), ` (write it like "100/1m burst 20")`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What can be read and cannot be kept is a LimitError, as from Validate.
func TestParseLimitValidates(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		"0/1s":                          "Tokens",
		"1/0s":                          "Period",
		"2/1ns":                         "Tokens",
		"10/1s burst 0":                 "Burst",
		"1/1s burst 9000000000000000":   "Burst",
		"10/day fixed burst 11":         "Burst",
		"10/week from 1 fixed":          "Calendar",
		"10/month from 32":              "Calendar",
		"10/month from 01":              "Calendar",
		"10/month from funday":          "Calendar",
		"10/day from monday":            "Calendar",
		"10/year from 9999999999999999": "Calendar",
	} {
		limit, err := rate.ParseLimit(text)
		var invalid *rate.LimitError
		if !errors.As(err, &invalid) || invalid.Field != field || limit != (rate.Limit{}) {
			t.Errorf("%q is %+v, %v", text, limit, err)
		}
	}
}

func TestWhatStringWritesParseLimitReads(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := validLimit.Draw(t, "limit")
		read, err := rate.ParseLimit(limit.String())
		if err != nil {
			t.Fatal(err)
		}
		if read.WithBurst(read.Burst) != limit.WithBurst(limit.Burst) {
			t.Fatalf("%+v is written %v and read %+v", limit, limit, read)
		}
	})
}

// Whatever is typed: an error or a limit that is valid, never a panic.
func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{"100/1m burst 20", "10/s", "5/2weeks", "-1/-1s burst -1", "\u00a0/\xff", "10/month from 15 burst 3", "1/day Etc/GMT+1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := rate.ParseLimit(text)
		if err != nil {
			return
		}
		if err := limit.Validate(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if again, err := rate.ParseLimit(limit.String()); err != nil || again.Burst != limit.Burst || again.Period != limit.Period {
			t.Errorf("%q is written %v and read %v, %v", text, limit, again, err)
		}
	})
}
