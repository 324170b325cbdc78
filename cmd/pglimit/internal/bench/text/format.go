package text

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// What stands for a figure that is not there.
const (
	Unknown = "?" // the figure is not known
	None    = "-" // there is no such figure
)

// Count writes 1234567 as 1,234,567.
func Count(n int64) string {
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

// Number writes large numbers as [Count] does, and numbers below 100 with a digit behind
// the point.
func Number(f float64) string {
	switch {
	case unknown(f):
		return Unknown
	case f < 100:
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	}
	return Count(int64(f + 0.5))
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
	if unknown(us) {
		return Unknown
	}
	us = significant(us)
	switch {
	case us >= 1e6:
		return threeDigits(us/1e6) + " s"
	case us >= 1000:
		return threeDigits(us/1000) + " ms"
	}
	return threeDigits(us) + " µs"
}

// Millis writes microseconds as milliseconds without the unit: 0.85, 12.1, 1,060. Less
// than a microsecond is "<.001".
func Millis(us float64) string {
	if unknown(us) {
		return Unknown
	}
	switch ms := significant(us) / 1000; {
	case ms == 0:
		return "0"
	case ms < 0.001:
		return "<.001"
	case ms < 0.1:
		return strconv.FormatFloat(ms, 'f', 3, 64)
	case ms >= 1000:
		return Count(int64(ms))
	default:
		return threeDigits(ms)
	}
}

// Small writes three significant digits, wherever they begin: 0.0000996.
func Small(f float64) string {
	if unknown(f) {
		return Unknown
	}
	return strconv.FormatFloat(significant(f), 'f', -1, 64)
}

// Percent writes a share as finely as a share of many decisions needs: 99.97 %. Only all
// of them is 100 %.
func Percent(share float64) string {
	if unknown(share) {
		return Unknown
	}
	if text := fmt.Sprintf("%.2f", 100*share); share >= 1 || text != "100.00" {
		return strings.TrimSuffix(text, ".00") + " %"
	}
	return "99.99 %"
}

// Share writes a share as a whole number of percent: 93 %. Only none is 0 %, and only all
// is 100 %.
func Share(share float64) string {
	percent := math.Round(100 * share)
	switch {
	case unknown(share):
		return Unknown
	case share > 0 && percent == 0:
		return "<1 %"
	case share < 1 && percent == 100:
		return "99 %"
	}
	return Count(int64(percent)) + " %"
}

// Factor writes ×310, ×1.2, ×0.85.
func Factor(f float64) string {
	switch {
	case unknown(f):
		return Unknown
	case f >= 10:
		return "×" + Count(int64(f+0.5))
	case f >= 1.095:
		return "×" + strconv.FormatFloat(f, 'f', 1, 64)
	case f >= 0.1:
		return "×" + strconv.FormatFloat(f, 'f', 2, 64)
	}
	return "×" + Small(f)
}

// Spread writes by how much the repetitions differ from their median, which is half of
// what [result.Figure.Spread] returns: ±3 %.
func Spread(spread float64) string {
	if unknown(spread) {
		return Unknown
	}
	return "±" + Count(int64(math.Ceil(50*spread-1e-9))) + " %"
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

func unknown(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) }

// significant rounds to three digits, so that 999.9 µs become 1.00 ms and not 1000 µs.
func significant(f float64) float64 {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 3, 64), 64)
	return rounded
}

func threeDigits(f float64) string {
	digits := 2
	switch {
	case f >= 100:
		digits = 0
	case f >= 10:
		digits = 1
	}
	return strconv.FormatFloat(f, 'f', digits, 64)
}
