package chart_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
)

func number(f float64) string { return strconv.FormatFloat(math.Round(f*1000)/1000, 'f', -1, 64) }

// attributes of that name, of all elements whose class begins with that.
func attributes(svg template.HTML, class, name string) (all []string) {
	for _, element := range regexp.MustCompile(`<[a-z]+ class="`+class+`[^>]*>`).FindAllString(string(svg), -1) {
		all = append(all, regexp.MustCompile(` ` + name + `="([^"]*)"`).FindStringSubmatch(element)[1])
	}
	return all
}

func texts(svg template.HTML, class string) (all []string) {
	for _, text := range regexp.MustCompile(`<text class="`+class+`[^>]*>([^<]*)<`).FindAllStringSubmatch(string(svg), -1) {
		all = append(all, text[1])
	}
	return all
}

// Ticks are round numbers around the figures, and what lies between two ticks is drawn between them.
func TestScales(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scale   chart.Scale
		figures []float64
		ticks   string
	}{
		{chart.Linear, []float64{3, 95}, "0 50 100"},
		{chart.Linear, []float64{0.2, 0.7}, "0 0.2 0.4 0.6 0.8"},
		{chart.Time, []float64{5, 600}, "0 120 240 360 480 600"},
		{chart.Log, []float64{30, 700}, "20 50 100 200 500 1000"},
		{chart.Log, []float64{0.4, 2e6}, "0.1 1 10 100 1000 10000 100000 1000000 10000000"},
		{chart.Log, []float64{0, 10, 20}, "10 20"},
		{chart.Nines, []float64{50, 99, 99.93}, "50 90 99 99.9 99.99"},
		{chart.Linear, []float64{7, 7}, "0 2 4 6 8"},
	} {
		l := chart.Lines{X: chart.Axis{Text: number}, Y: chart.Axis{Scale: c.scale, Text: number}, Lines: []chart.Line{{Name: "a"}}}
		for i, f := range c.figures {
			l.Lines[0].Points = append(l.Lines[0].Points, chart.Point{X: float64(i), Y: f})
		}
		svg := l.SVG()
		got := strings.Join(texts(svg, "axis"), " ")
		if !strings.HasPrefix(got, c.ticks+" 0") { // then the ticks of the x axis
			t.Errorf("scale %d of %v has %s, want %s", c.scale, c.figures, got, c.ticks)
		}
		ys := regexp.MustCompile(`[ML][\d.]+ ([\d.]+)`).FindAllStringSubmatch(attributes(svg, "line", "d")[0], -1)
		for i, y := range ys {
			if at, err := strconv.ParseFloat(y[1], 64); err != nil || at < 8 || at > 124 || i > 0 && at > high(ys[i-1][1]) {
				t.Errorf("scale %d: the points are at %v", c.scale, ys)
			}
		}
	}
}

// A step of ten times as much, or ten times as rare, is as long everywhere.
func TestEvenSteps(t *testing.T) {
	t.Parallel()
	for scale, figures := range map[chart.Scale][]float64{chart.Linear: {1, 2, 3}, chart.Log: {10, 100, 1000}, chart.Nines: {90, 99, 99.9}} {
		l := chart.Lines{X: chart.Axis{Text: number}, Y: chart.Axis{Scale: scale, Text: number}, Lines: []chart.Line{{Name: "a"}}}
		for i, f := range figures {
			l.Lines[0].Points = append(l.Lines[0].Points, chart.Point{X: float64(i), Y: f})
		}
		ys := regexp.MustCompile(`[ML][\d.]+ ([\d.]+)`).FindAllStringSubmatch(attributes(l.SVG(), "line", "d")[0], -1)
		if first, second := high(ys[0][1])-high(ys[1][1]), high(ys[1][1])-high(ys[2][1]); first < 10 || math.Abs(first-second) > 0.3 {
			t.Errorf("scale %d: steps of %v and %v", scale, first, second)
		}
	}
}

func high(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64)
	return f
}

func TestBarsAreAsLongAsTheirShare(t *testing.T) {
	t.Parallel()
	svg := chart.Bars{Bars: []chart.Bar{
		{Name: "a", Share: 1, Low: 0.9, High: 1.05, Value: "200", Mark: "best", Strong: true},
		{Name: "b", Share: 0.25, Value: "50", Mark: "25 %"},
		{Name: "c", Share: math.NaN(), Low: math.NaN(), High: math.NaN(), Value: "?"},
	}}.SVG()
	widths := attributes(svg, "bar", "width")
	if len(widths) != 2 || math.Abs(high(widths[0])-4*high(widths[1])) > 0.5 {
		t.Errorf("the bars are %v wide", widths)
	}
	if got := len(attributes(svg, "spread", "d")); got != 1 {
		t.Errorf("%d bars have a line from the lowest round to the highest, want 1", got)
	}
	if got := fmt.Sprint(texts(svg, "name"), texts(svg, "value"), texts(svg, "mark"), texts(svg, "[a-z]+ strong")); got != "[a b c] [200 50 ?] [best 25 % ] [a 200 best]" {
		t.Errorf("it says %s", got)
	}
}

// A panel is XML with a title and a description, whatever the names are, and long names do not push the bars out.
func TestPanelsAreWellFormed(t *testing.T) {
	t.Parallel()
	const hostile = `"><script>&`
	points := []chart.Point{{X: 1, Y: 10}, {X: 2, Y: 20}, {X: 3, Y: math.NaN()}, {X: math.Inf(1), Y: 5}}
	long := strings.Repeat("published_", 3) + hostile
	for _, svg := range []template.HTML{
		chart.Bars{Title: hostile, Bars: []chart.Bar{{Name: long, Share: 0.5, Value: hostile, Mark: hostile}}}.SVG(),
		chart.Lines{
			Title: hostile, X: chart.Axis{Label: hostile, Text: number}, Y: chart.Axis{Label: hostile, Text: number},
			Lines: []chart.Line{{Name: hostile, Points: points}}, Limit: chart.Mark{At: 30, Label: hostile}, Begin: []chart.Mark{{At: 1, Label: hostile}},
		}.SVG(),
	} {
		var elements []string
		for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v: %s", err, svg)
			}
			if start, ok := token.(xml.StartElement); ok {
				elements = append(elements, start.Name.Local)
			}
		}
		if slices.Contains(elements, "script") || strings.Join(elements[:3], " ") != "svg title desc" || strings.Contains(string(svg), "NaN") || strings.Contains(string(svg), "Inf") {
			t.Errorf("%v: %s", elements, svg)
		}
		for _, width := range attributes(svg, "bar", "width") {
			if high(width) < 50 {
				t.Errorf("half a bar is %s wide", width)
			}
		}
	}
}

func TestNothingToSeeIsNotDrawn(t *testing.T) {
	t.Parallel()
	for name, points := range map[string][]chart.Point{"none": nil, "one": {{X: 1, Y: 5}}, "zeros": {{X: 1}, {X: 2}}, "unknown": {{X: 1, Y: math.NaN()}, {X: 2, Y: math.NaN()}}} {
		l := chart.Lines{X: chart.Axis{Text: number}, Y: chart.Axis{Text: number}, Lines: []chart.Line{{Name: "a", Points: points}}}
		if !l.Empty() || l.SVG() != "" {
			t.Errorf("%s: %s", name, l.SVG())
		}
	}
	if svg := (chart.Bars{}).SVG(); svg != "" {
		t.Errorf("no bars: %s", svg)
	}
}
