package rate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseLimit reads a limit as people write it: "100/1m burst 20", "10/s",
// "1/36h", "5/1d". The tokens are a whole number, which may have underscores
// ("1_000_000"). The period is a Go duration, or a whole number of days ("1d" is
// 24h) or weeks ("1w" is 7d), its units in small letters; a number 1 before the unit may be left out. Without
// "burst N" the burst equals the tokens. A window of the calendar (second, minute, hour, day, week, month or year, see
// [Limit.Fixed]) is written with its time zone, or "fixed" for UTC: "1000/day fixed", "10000/month",
// "10000/month from 15 Europe/Berlin", "500/week from sunday fixed". The limit that it returns is valid.
func ParseLimit(text string) (Limit, error) {
	fail := func(why string, args ...any) (Limit, error) {
		return Limit{}, fmt.Errorf("pglimit: limit %q: %s (write it like %q)", text, fmt.Sprintf(why, args...), "100/1m burst 20")
	}
	rate, burst, hasBurst := cutBurst(strings.TrimSpace(text))
	tokens, period, ok := strings.Cut(rate, "/")
	if !ok {
		return fail("there is no \"/\" between tokens and period")
	}
	tokens, burst = strings.ToLower(tokens), strings.ToLower(burst)
	var l Limit
	var err error
	if l.Tokens, err = parseCount(tokens); err != nil {
		return fail("tokens %q is not a whole number", strings.TrimSpace(tokens))
	}
	if words := strings.FieldsFunc(strings.TrimSpace(period), isSpace); len(words) > 0 && l.parseCalendar(words) {
		if word := lower(words[0]); len(words) == 1 && l.Period <= week {
			return fail("period %q is a calendar window: write \"%s fixed\", or name its time zone; for tokens that come back one by one, \"1%.1s\"", word, word, word)
		}
	} else if l.Period, err = parsePeriod(strings.TrimSpace(period)); err != nil { // no capitals: 1M might be a month
		return fail("period %q is not a duration such as 500ms, 1m30s or 1d, or a unit such as s, m, h or d", strings.TrimSpace(period))
	}
	l.Burst = l.Tokens
	if hasBurst {
		if l.Burst, err = parseCount(burst); err != nil {
			return fail("burst %q is not a whole number", strings.TrimSpace(burst))
		}
		if l.Burst == 0 {
			return fail("the burst must be at least 1")
		}
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

// cutBurst cuts the text around "burst", in any case.
func cutBurst(text string) (rate, burst string, found bool) {
	if i := strings.Index(lower(text), "burst"); i >= 0 {
		return text[:i], text[i+len("burst"):], true
	}
	return text, "", false
}

// lower is the text with A to Z in lower case: as in SQL, and of as many bytes. strings.ToLower makes some letters longer.
func lower(text string) string {
	letters := []byte(text)
	for i, c := range letters {
		if 'A' <= c && c <= 'Z' {
			letters[i] = c + 'a' - 'A'
		}
	}
	return string(letters)
}

// isSpace is what separates words in SQL, too.
func isSpace(r rune) bool { return strings.ContainsRune(" \t\n\v\f\r", r) }

// parseCalendar reads the words after the slash as a window of the calendar, and says whether they begin with one.
func (l *Limit) parseCalendar(words []string) bool {
	for _, c := range calendars {
		if lower(words[0]) == c.unit {
			l.Period, l.Calendar = c.longest, c.unit
			rest := words[1:]
			if len(rest) > 1 && lower(rest[0]) == "from" {
				l.Calendar += " from " + lower(rest[1])
				rest = rest[2:]
			}
			if zone := strings.Join(rest, " "); zone != "" && lower(zone) != "fixed" && lower(zone) != "utc" {
				l.Calendar += " " + zone
			} else {
				l.Calendar += " UTC"
			}
			return true
		}
	}
	return false
}

func parseCount(text string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(text), "_", ""), 10, 64)
}

const (
	day  = 24 * time.Hour
	week = 7 * day
)

func parsePeriod(text string) (time.Duration, error) {
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = "1" + text
	}
	for suffix, unit := range map[string]time.Duration{"d": day, "w": week} {
		if number, ok := strings.CutSuffix(text, suffix); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil || n > int64(math.MaxInt64/unit) || n < int64(math.MinInt64/unit) {
				return 0, fmt.Errorf("pglimit: bad period %q", text)
			}
			return time.Duration(n) * unit, nil
		}
	}
	return time.ParseDuration(text)
}

// formatPeriod is Duration.String without the zeros it ends in: 1m, not 1m0s.
func formatPeriod(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
