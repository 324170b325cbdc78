package bench

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// count writes 1234567 as 1,234,567.
func count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var out strings.Builder
	for i, digit := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(digit)
	}
	return sign + out.String()
}

// number writes large numbers as [count] does, and small ones with a digit behind
// the point.
func number(f float64) string {
	if f < 100 {
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	}
	return count(int64(f + 0.5))
}

// plural is "1 key" or "2 keys".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(int64(n)) + " " + what + "s"
}

// duration writes three digits: 85.2 µs, 1.53 ms, 12.1 s.
func duration(d time.Duration) string {
	value, unit := float64(d)/float64(time.Microsecond), "µs"
	switch {
	case d >= time.Second:
		value, unit = d.Seconds(), "s"
	case d >= time.Millisecond:
		value, unit = value/1000, "ms"
	}
	digits := 2
	switch {
	case value >= 100:
		digits = 0
	case value >= 10:
		digits = 1
	}
	return fmt.Sprintf("%.*f %s", digits, value, unit)
}
