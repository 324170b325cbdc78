package chart

import (
	"math"
	"strconv"
	"strings"
)

// Unit says how a number is written.
type Unit int

// The units.
const (
	Number  Unit = iota // 0.5, 120, 19.2k, 3.4M
	Micros              // microseconds: 850 µs, 1.2 ms, 3 s
	Seconds             // 0.5 s, 30 s, 2 min
	Bytes               // 158 B, 1.5 kB, 2 MB
	Percent             // of 100: 99.9 %
)

// Text of the number, to three digits and with its unit. No line breaks between both.
func (u Unit) Text(v float64) string {
	switch u {
	case Micros:
		return scaled(v, []prefix{{1e-3, "\u00a0ns"}, {1, "\u00a0µs"}, {1e3, "\u00a0ms"}, {1e6, "\u00a0s"}})
	case Seconds:
		return scaled(v, []prefix{{1e-3, "\u00a0ms"}, {1, "\u00a0s"}, {60, "\u00a0min"}})
	case Bytes:
		return scaled(v, []prefix{{1, "\u00a0B"}, {1e3, "\u00a0kB"}, {1e6, "\u00a0MB"}, {1e9, "\u00a0GB"}, {1e12, "\u00a0TB"}})
	case Percent:
		if v > 99.9 && v < 100 { // what is missing to 100 is the point
			return strconv.FormatFloat(math.Floor(v*1000)/1000, 'f', -1, 64) + "\u00a0%"
		}
		return digits(v) + "\u00a0%"
	}
	return scaled(v, []prefix{{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}})
}

// name of the unit as the head of a table has it.
func (u Unit) name() string {
	return [...]string{Number: "", Micros: "µs", Seconds: "s", Bytes: "bytes", Percent: "%"}[u]
}

type prefix struct {
	of   float64
	name string
}

// scaled by the largest prefix that leaves at least 1.
func scaled(v float64, prefixes []prefix) string {
	if v == 0 {
		return "0"
	}
	best := prefixes[0]
	for _, p := range prefixes[1:] {
		// 999.9 is to three digits 1000, that is 1 of the next prefix. 90 s reads better
		// than 1.5 min.
		if least := p.of * 0.9995; math.Abs(v) >= least && (p.of != 60 || math.Abs(v) >= 2*least) {
			best = p
		}
	}
	return digits(v/best.of) + best.name
}

// digits writes three of them, and large numbers with an exponent.
func digits(v float64) string {
	size := math.Abs(v)
	switch {
	case v == 0:
		return "0"
	case size >= 1e6 || size < 1e-3:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case size >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	text := strconv.FormatFloat(v, 'f', 2-int(math.Floor(math.Log10(size))), 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}

// exact writes whole numbers in full and others to five digits, for tables.
func exact(v float64) string {
	if !drawable(v) {
		return "–"
	}
	if size := math.Abs(v); size < 1e15 && v != math.Trunc(v) {
		decimals := max(0, 4-int(math.Floor(math.Log10(size))))
		text := strconv.FormatFloat(v, 'f', min(decimals, 12), 64)
		if strings.Contains(text, ".") {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		return text
	} else if size < 1e15 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 5, 64)
}

// drawable numbers are finite, and leave room for a scale around them.
func drawable(v float64) bool { return !math.IsNaN(v) && math.Abs(v) < 1e100 }
