package rate_test

import (
	"errors"
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
		{"100/1m", rate.PerMinute(100), "100/1m"},
		{"10/s", rate.PerSecond(10), "10/1s"},
		{"10/s burst 10", rate.PerSecond(10).WithBurst(10), "10/1s"},
		{" 10 / 1s  burst  5 ", rate.PerSecond(10).WithBurst(5), "10/1s burst 5"},
		{"10/s BURST 5", rate.PerSecond(10).WithBurst(5), "10/1s burst 5"},
		{"1/10m", rate.Every(10 * time.Minute), "1/10m"},
		{"1/1m30s", rate.Every(90 * time.Second), "1/1m30s"},
		{"1/1.5h", rate.Every(90 * time.Minute), "1/1h30m"},
		{"1/36h", rate.Every(36 * time.Hour), "1/36h"},
		{"5/1d", rate.Limit{Tokens: 5, Period: day, Burst: 5}, "5/24h"},
		{"5/d", rate.Limit{Tokens: 5, Period: day, Burst: 5}, "5/24h"},
		{"5/2w", rate.Limit{Tokens: 5, Period: 14 * day, Burst: 5}, "5/336h"},
		{"1/365d", rate.Every(365 * day), "1/8760h"},
		{"1/ms", rate.Every(time.Millisecond), "1/1ms"},
		{"1/500us", rate.Every(500 * time.Microsecond), "1/500µs"},
		{"1/500µs", rate.Every(500 * time.Microsecond), "1/500µs"},
		{"1/ns burst 7", rate.Every(time.Nanosecond).WithBurst(7), "1/1ns burst 7"},
		{"1_000_000_000/s", rate.PerSecond(rate.MaxRate), "1000000000/1s"},
		{"1/1h0m1s", rate.Every(time.Hour + time.Second), "1/1h0m1s"},
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

func TestParseLimitErrors(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"":                         `there is no "/" between tokens and period`,
		"10":                       `there is no "/" between tokens and period`,
		"10 burst 5":               `there is no "/" between tokens and period`,
		"10/1M":                    `period "1M" is not a duration`,
		"10/H burst 5":             `period "H" is not a duration`,
		"/1s":                      `tokens "" is not a whole number`,
		"many/1s":                  `tokens "many" is not a whole number`,
		"1.5/1s":                   `tokens "1.5" is not a whole number`,
		"99999999999999999999/1s":  `tokens "99999999999999999999" is not a whole number`,
		"10/":                      `period "" is not a duration`,
		"10/5":                     `period "5" is not a duration`,
		"10/1 fortnight":           `period "1 fortnight" is not a duration`,
		"10/1s/2":                  `period "1s/2" is not a duration`,
		"10/1.5d":                  `period "1.5d" is not a duration`,
		"1/106752d":                `period "106752d" is not a duration`, // 292 years and a day
		"1/-99999999999999999w":    `period "-99999999999999999w" is not a duration`,
		"10/1s burst":              `burst "" is not a whole number`,
		"ȺȺȺȺȺȺburst":              `there is no "/" between tokens and period`, // in lower case, Ⱥ takes a byte more
		"10/1s burst lots":         `burst "lots" is not a whole number`,
		"10/1s burst 5 burst 6":    `burst "5 burst 6" is not a whole number`,
		"10/1s burst 0":            `the burst must be at least 1`,
		"10/1s burst 5; drop it":   `burst "5; drop it" is not a whole number`,
		"10/1s burst 0x10":         `burst "0x10" is not a whole number`,
		"ten per second":           `there is no "/" between tokens and period`,
		"10/1sburst5/2":            `burst "5/2" is not a whole number`,
		"\x00/\xff":                `tokens "\x00" is not a whole number`,
		"10/1s\nburst 5\nand more": `burst "5\nand more" is not a whole number`,
	} {
		limit, err := rate.ParseLimit(text)
		if err == nil || limit != (rate.Limit{}) {
			t.Errorf("%q is %+v, %v", text, limit, err)
			continue
		}
		if !strings.Contains(err.Error(), why) || !strings.HasSuffix(err.Error(), `(write it like "100/1m burst 20")`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What can be read and cannot be kept is a LimitError, as from Validate.
func TestParseLimitValidates(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		"0/1s":                             "Tokens",
		"-1/1s":                            "Tokens",
		"1/0s":                             "Period",
		"1/-1d":                            "Period",
		"2/1ns":                            "Tokens",
		"10/1s burst -5":                   "Burst",
		"1/1s burst 9_000_000_000_000_000": "Burst",
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
	for _, seed := range []string{"100/1m burst 20", "10/s", "5/2w", "-1/-1d burst -1", "_/_", "1/d burst _", "\u023a\u023a\u023a\u023a\u023a\u023aburst 5", "10/month from 15\u00a0burst 3", "1/day etc/gmt+1"} {
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
