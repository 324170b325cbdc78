package chart_test

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
)

var update = flag.Bool("update", false, "write the golden files anew")

// pictures of every kind, with the ids of their golden files.
var pictures = map[string]chart.Picture{
	"lines": chart.Lines{
		ID: "lines", Title: "Time to a grant", Caption: "Lower is better.",
		X: chart.Axis{Label: "time since the start", Unit: chart.Seconds},
		Y: chart.Axis{Label: "p99 of a grant", Unit: chart.Micros, Scale: chart.Log},
		Series: []chart.Series{
			{Name: "token_bucket", Style: 1, Points: []chart.Point{{X: 150, Y: 800}, {X: 300, Y: 900}, {X: 450, Y: math.NaN()}, {X: 600, Y: 1200}}},
			{Name: "upsert", Style: 2, Points: []chart.Point{{X: 150, Y: 1100}, {X: 300, Y: 0}, {X: 450, Y: 2e6}, {X: 600, Y: 2.5e6}}},
		},
		Changes: []chart.Change{{X: 0, Label: "5/s"}, {X: 180, Label: "50/s"}, {X: 360, Label: "100/s"}},
		Limits:  []chart.Limit{{Y: 10_000, Label: "the bound: 10 ms"}},
	},
	"steps": chart.Lines{
		ID: "steps", Title: "Tokens granted in each 10 s", Caption: "No line may cross the thick one.", Step: true,
		X: chart.Axis{Label: "time since the start", Unit: chart.Seconds},
		Y: chart.Axis{Label: "tokens"},
		Series: []chart.Series{
			{Name: "token_bucket", Style: 1, Points: []chart.Point{{X: 10, Y: 5}, {X: 20, Y: 6}, {X: 30, Y: 4}}},
			{Name: "published_exclusion", Style: 6, Points: []chart.Point{{X: 10, Y: 5}, {X: 20, Y: 1}, {X: 30, Y: 0}}},
		},
		Limits: []chart.Limit{{Y: 6, Label: "the limit: at most 6"}},
	},
	"percentiles": chart.Lines{
		ID: "percentiles", Title: "Latency by percentile", Caption: "Bad is a curve that bends upwards at the right.",
		X: chart.Axis{Label: "percent that were no slower", Unit: chart.Percent, Scale: chart.Percentile},
		Y: chart.Axis{Label: "latency", Unit: chart.Micros, Scale: chart.Log},
		Series: []chart.Series{
			{Name: "token_bucket", Style: 1, Points: []chart.Point{{X: 0, Y: 300}, {X: 50, Y: 800}, {X: 90, Y: 1500}, {X: 99, Y: 3000}, {X: 99.9, Y: 9000}, {X: 99.99, Y: 15000}, {X: 100, Y: 99999}}},
		},
	},
	"bars": chart.Bars{
		ID: "bars", Title: "Mean time of a request", Caption: "Shorter is better.", Label: "mean of a request", Unit: chart.Micros, NoteLabel: "end",
		Bars: []chart.Bar{
			{Name: "token_bucket", Style: 1, Value: 602, Low: 590, High: 640, Note: 609},
			{Name: "published_for_update_nowait", Style: 5, Value: 1210, Note: math.NaN()},
			{Name: "nothing", Style: 3, Value: math.NaN(), Note: math.NaN()},
			{Name: "zero", Style: 4, Note: 0},
		},
	},
}

func html(t *testing.T, p chart.Picture) string {
	t.Helper()
	text, err := p.HTML()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What is drawn has been looked at in a browser. A change here is to be looked at again.
func TestGoldenPictures(t *testing.T) {
	t.Parallel()
	for name, picture := range pictures {
		got := html(t, picture)
		file := filepath.Join("testdata", name+".html")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not as in %s; if that is meant, look at it and run the test with -update. It is now:\n%s", name, file, got)
		}
	}
}

// Whatever the numbers are, the picture has none that a browser cannot read.
func TestStrangeNumbersAreDrawnOrLeftOut(t *testing.T) {
	t.Parallel()
	strange := [][]float64{
		nil, {0}, {1}, {-1}, {math.NaN()}, {math.Inf(1), 1}, {math.MaxFloat64, 1}, {math.SmallestNonzeroFloat64, 1},
		{1e-9, 1e15}, {5, 5, 5}, {-3, 4}, {0, 0}, {1e99, -1e99}, {99.99, 100, 101}, {1e-200},
	}
	number := regexp.MustCompile(`(?i)nan|inf|\d(e[+-]|\.\.)\d`)
	drawing := regexp.MustCompile(`(?s)(?: d| x| y|width|height|viewBox)="([^"]*)"`)
	for _, values := range strange {
		for _, scale := range []chart.Scale{chart.Linear, chart.Log, chart.Percentile} {
			for _, unit := range []chart.Unit{chart.Number, chart.Micros, chart.Seconds, chart.Bytes, chart.Percent} {
				var points []chart.Point
				var bars []chart.Bar
				for _, v := range values {
					points = append(points, chart.Point{X: v, Y: v})
					bars = append(bars, chart.Bar{Name: "n", Value: v, Low: v, High: v + 1})
				}
				axis := chart.Axis{Label: "l", Unit: unit, Scale: scale}
				for _, picture := range []chart.Picture{
					chart.Lines{ID: "i", X: axis, Y: axis, Series: []chart.Series{{Points: points}}, Limits: []chart.Limit{{Y: 3, Label: "m"}}},
					chart.Lines{ID: "i", X: axis, Y: axis, Series: []chart.Series{{Points: points}}, Step: true},
					chart.Bars{ID: "i", Unit: unit, Bars: bars},
				} {
					for _, attribute := range drawing.FindAllStringSubmatch(html(t, picture), -1) {
						if number.MatchString(attribute[1]) {
							t.Errorf("%v: unit %d, scale %d: %s", values, unit, scale, attribute[0])
						}
					}
				}
			}
		}
	}
}
