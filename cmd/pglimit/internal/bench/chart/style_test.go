package chart

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Text has a contrast of 4.5, lines of 3, in both schemes (WCAG 2.2, 1.4.3 and 1.4.11).
func TestContrast(t *testing.T) {
	t.Parallel()
	light, dark, found := strings.Cut(cssText, "prefers-color-scheme: dark")
	if !found {
		t.Fatal("there is no dark scheme")
	}
	for name, text := range map[string]string{"light": light, "dark": dark} {
		colour := map[string]string{}
		for _, variable := range regexp.MustCompile(`--(\w+): (#\w+)`).FindAllStringSubmatch(text, -1) {
			colour[variable[1]] = variable[2]
		}
		least := map[string]float64{"text": 4.5, "muted": 4.5, "limit": 3, "axis": 3}
		for n := 1; n <= Styles; n++ {
			least["c"+strconv.Itoa(n)] = 3
		}
		for variable, want := range least {
			if got := contrast(t, colour[variable], colour["bg"]); got < want {
				t.Errorf("%s: --%s %s has a contrast of %.2f, want %.1f", name, variable, colour[variable], got, want)
			}
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (math.Max(x, y) + 0.05) / (math.Min(x, y) + 0.05)
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	hex := strings.TrimPrefix(colour, "#")
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	n, err := strconv.ParseUint(hex, 16, 32)
	if err != nil || len(hex) != 6 {
		t.Fatalf("%q is no colour", colour)
	}
	part := func(shift int) float64 {
		c := float64(n>>shift&255) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}
