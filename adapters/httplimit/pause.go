package httplimit

import (
	"errors"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// refused says whether the server has not served the request, and may say when it would. GitHub answers with 403.
func refused(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusForbidden:
		return true
	}
	return false
}

// pauseOf is how long a response asks to send nothing: see [Transport]. Zero: it does not ask.
func pauseOf(status int, h http.Header, now time.Time) (pause time.Duration) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	if refused(status) {
		for _, value := range h["Retry-After"] {
			if n, ok := wholeNumber(value); ok {
				pause = max(pause, seconds(n))
			} else if date, err := http.ParseTime(value); err == nil {
				pause = max(pause, date.Sub(now))
			}
		}
	}
	if pause > 0 { // which has precedence
		return pause
	}
	for _, line := range h[rateField] {
		pause = max(pause, usedUp(line))
	}
	if h.Get(remainingField) == "0" {
		if n, ok := wholeNumber(h.Get(resetField)); ok {
			pause = max(pause, time.Unix(n, 0).Sub(now))
		}
	}
	return pause
}

const quoted = `"(?:[^"\\]|\\["\\])*"`

var (
	// parameter of an item of a list (RFC 9651, section 3.1.2), and an item whose value is a string.
	parameter = regexp.MustCompile(`; *([a-z*][a-z0-9_.*-]*)(?:=(` + quoted + `|[^" \t,;]+))?`)
	item      = regexp.MustCompile(`^[ \t]*` + quoted + `((?:` + parameter.String() + `)*)[ \t]*(?:,|$)`)
)

// usedUp returns the longest t of those limits in a line of RateLimit that have r=0. A malformed line has none.
func usedUp(line string) (longest time.Duration) {
	for line != "" {
		found := item.FindStringSubmatch(line)
		if found == nil {
			return 0
		}
		line = line[len(found[0]):]
		values := map[string]string{}
		for _, p := range parameter.FindAllStringSubmatch(found[1], -1) {
			values[p[1]] = p[2]
		}
		if left, ok := wholeNumber(values["r"]); ok && left == 0 {
			t, _ := wholeNumber(values["t"])
			longest = max(longest, seconds(t))
		}
	}
	return longest
}

// wholeNumber parses digits. A number that a Duration of so many seconds cannot hold becomes the largest that it can.
func wholeNumber(text string) (n int64, ok bool) {
	u, err := strconv.ParseUint(text, 10, 64)
	return int64(min(u, math.MaxInt64/uint64(time.Second))), err == nil || errors.Is(err, strconv.ErrRange)
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }
