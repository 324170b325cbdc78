package gate

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/text"
)

// kind of a metric's value.
type kind int

const (
	duration kind = iota // in microseconds
	share                // of 1
	number
)

// write a figure beside the value that it broke: with all its digits where rounding would
// hide the difference.
func (k kind) write(f, beside float64) string {
	if f != beside && math.Abs(f-beside) < 0.01*beside {
		return k.exactly(f)
	}
	switch k {
	case duration:
		return text.Micros(f)
	case share:
		return text.Percent(f)
	}
	if f != math.Trunc(f) {
		return text.Small(f)
	}
	return text.Count(int64(f))
}

func (k kind) exactly(f float64) string {
	switch k {
	case duration:
		return time.Duration(f * float64(time.Microsecond)).String()
	case share:
		return strconv.FormatFloat(100*f, 'g', 6, 64) + " %"
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// parse a value as people write it. Values are never negative.
func (k kind) parse(text string) (float64, error) {
	if text == "" {
		return 0, fmt.Errorf("there is no value: it must be %s", k.allowed())
	}
	var f float64
	var ok bool
	switch k {
	case duration:
		f, ok = parseDuration(text)
	case share:
		f, ok = parseShare(text)
	default:
		f, ok = parseNumber(text)
	}
	if !ok || f < 0 || math.IsInf(f, 0) || math.IsNaN(f) {
		return 0, fmt.Errorf("the value %q must be %s", text, k.allowed())
	}
	return f, nil
}

func (k kind) allowed() string {
	switch k {
	case duration:
		return "a duration, such as 5ms or 300us"
	case share:
		return "a share, such as 1% or 0.01"
	}
	return "a number, such as 0, 1.5, 20,000, 20k or 1.5M"
}

func parseDuration(text string) (float64, bool) {
	d, err := time.ParseDuration(squeeze(text))
	return float64(d) / float64(time.Microsecond), err == nil
}

func parseShare(text string) (float64, bool) {
	percent, isPercent := strings.CutSuffix(text, "%")
	f, ok := parseNumber(strings.TrimSpace(percent))
	if isPercent {
		f /= 100
	}
	return f, ok && f <= 1
}

// plain are numbers with or without separators between their thousands, and k or M.
var plain = regexp.MustCompile(`^(\d+|\d{1,3}(?:[,_]\d{3})+)(\.\d+)?(k|M)?$`)

func parseNumber(text string) (float64, bool) {
	parts := plain.FindStringSubmatch(text)
	if parts == nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.NewReplacer(",", "", "_", "").Replace(parts[1])+parts[2], 64)
	switch parts[3] {
	case "k":
		f *= 1e3
	case "M":
		f *= 1e6
	}
	return f, err == nil
}
