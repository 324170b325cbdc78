package text

import (
	"math"
	"testing"
)

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "-1,234,567"},
		{Number(0), "0"}, {Number(0.25), "0.2"}, {Number(99.94), "99.9"}, {Number(1234.5), "1,235"}, {Number(math.NaN()), "?"},
		{Plural(1, "key"), "1 key"}, {Plural(2000, "key"), "2,000 keys"},
		{Micros(0.85), "0.85 µs"}, {Micros(85), "85.0 µs"}, {Micros(999.9), "1.00 ms"}, {Micros(1234), "1.23 ms"},
		{Micros(123e3), "123 ms"}, {Micros(56e6), "56.0 s"}, {Micros(math.NaN()), "?"},
		{Millis(0), "0"}, {Millis(0.2), "<.001"}, {Millis(42.4), "0.042"}, {Millis(850), "0.85"}, {Millis(4310), "4.31"},
		{Millis(12_140), "12.1"}, {Millis(1_060_000), "1,060"}, {Millis(math.NaN()), "?"},
		{Small(0), "0"}, {Small(1), "1"}, {Small(2.25), "2.25"}, {Small(0.00009964), "0.0000996"}, {Small(12.345), "12.3"}, {Small(math.Inf(1)), "?"},
		{Percent(0), "0 %"}, {Percent(0.5), "50 %"}, {Percent(0.12345), "12.35 %"}, {Percent(0.99999), "99.99 %"}, {Percent(1), "100 %"},
		{Share(0), "0 %"}, {Share(0.001), "<1 %"}, {Share(0.931), "93 %"}, {Share(0.999), "99 %"}, {Share(1), "100 %"}, {Share(math.NaN()), "?"},
		{Factor(310.4), "×310"}, {Factor(1.24), "×1.2"}, {Factor(1.04), "×1.04"}, {Factor(0.85), "×0.85"}, {Factor(0.0123), "×0.0123"}, {Factor(math.NaN()), "?"},
		{Spread(0), "±0 %"}, {Spread(0.06), "±3 %"}, {Spread(0.001), "±1 %"}, {Spread(math.NaN()), "?"},
		{Seconds(0.5), "500ms"}, {Seconds(180), "3m"}, {Seconds(7200), "2h"}, {Seconds(90), "1m30s"}, {Seconds(0), "0s"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
