// Package format writes figures for people. A figure that is not known is "?".
package format

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unknown stands for a figure that is not known.
const Unknown = "?"

// Count writes 1234567 as 1,234,567.
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(digits) - 3; i > start; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Number writes a large number as [Count] does, and one below 100 with three significant digits: 0.0312, 1.5, 84.2.
func Number(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return Unknown
	case math.Abs(f) < 100:
		return strconv.FormatFloat(significant(f), 'f', -1, 64)
	}
	return Count(int64(math.Round(f)))
}

// Plural is "1 key" or "2 keys".
func Plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Count(n) + " " + what + "s"
}

// Micros writes microseconds with three digits: 85.2 µs, 1.53 ms, 12.1 s.
func Micros(us float64) string {
	if math.IsNaN(us) {
		return Unknown
	}
	switch us = significant(us); {
	case us >= 1e6:
		return Number(us/1e6) + " s"
	case us >= 1000:
		return Number(us/1000) + " ms"
	}
	return Number(us) + " µs"
}

// Percent writes a share: 0.07 %, 1.5 %, 93 %. Only all is 100 %.
func Percent(share float64) string {
	percent := 100 * share
	switch {
	case math.IsNaN(share):
		return Unknown
	case percent < 10:
		return strconv.FormatFloat(math.Round(100*percent)/100, 'f', -1, 64) + " %"
	case share < 1 && percent > 99:
		return "99 %"
	}
	return Count(int64(math.Round(percent))) + " %"
}

// Times writes a ratio: 310 ×, 1.2 ×, 0.85 ×.
func Times(ratio float64) string {
	digits := 2
	switch {
	case math.IsNaN(ratio) || math.IsInf(ratio, 0):
		return Unknown
	case ratio >= 10:
		return Count(int64(math.Round(ratio))) + " ×"
	case ratio >= 1.095:
		digits = 1
	}
	return strconv.FormatFloat(ratio, 'f', digits, 64) + " ×"
}

// Seconds writes a time as flags take it: 1s, 500ms, 10m.
func Seconds(s float64) string {
	text := time.Duration(math.Round(s * float64(time.Second))).String()
	for _, none := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, none) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// significant rounds to three digits, so that 999.9 µs become 1 ms and not 1000 µs.
func significant(f float64) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 3, 64), 64)
	return rounded
}
