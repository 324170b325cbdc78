package report

import (
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// limitPicture shows the tokens that the busiest key was granted against its limit.
type limitPicture struct{}

func (limitPicture) draw(a *album, id, number string) chart.Picture {
	l := chart.Lines{
		ID: id, Step: true,
		X: chart.Axis{Label: "time since the first grant", Unit: chart.Seconds},
		Y: chart.Axis{Label: "tokens to the busiest key", Unit: chart.Number},
	}
	each := ""
	var bounds []int64
	of := map[int64][]string{} // the strategies with a bound
	for _, line := range a.lines {
		k := line.run.KeyGrants
		if k == nil || len(k.Most) == 0 || !(k.Interval > 0) {
			continue
		}
		l.Series = append(l.Series, chart.Series{Name: line.strategy, Style: line.style, Points: keyPoints(k)})
		each = duration(k.Interval)
		if len(of[k.Bound]) == 0 {
			bounds = append(bounds, k.Bound)
		}
		of[k.Bound] = append(of[k.Bound], line.strategy)
	}
	if len(l.Series) == 0 {
		return nil
	}
	slices.Sort(bounds)
	label, allowed := "the limit: at most ", "The thick line across is what its limit allows in "+each+": its burst and what flows back meanwhile. No line may cross it."
	if len(bounds) > 1 {
		// Not in the picture: it is too narrow for the names.
		var whose []string
		for _, bound := range bounds {
			whose = append(whose, count(bound)+" for "+strings.Join(of[bound], ", "))
		}
		label, allowed = "at most ", "The thick lines across are what the limits allow in "+each+", a burst and what flows back meanwhile: "+strings.Join(whose, "; ")+". No line may cross its own."
	}
	for _, bound := range bounds {
		l.Limits = append(l.Limits, chart.Limit{Y: float64(bound), Label: label + count(bound)})
	}
	l.Title = titled(number, "Tokens granted in each "+each+", against the limit")
	l.Caption = "The most that any one key was granted. " + allowed + " The warm-up is there too."
	return l
}

// keyPoints are at the ends of the intervals. Of a long run each is the worst of several.
func keyPoints(k *result.KeyGrants) []chart.Point {
	every := factor(len(k.Most), mostPoints)
	var points []chart.Point
	for i := 0; i < len(k.Most); i += every {
		end := min(i+every, len(k.Most))
		points = append(points, chart.Point{
			X: k.Interval * float64(end),
			Y: float64(slices.Max(k.Most[i:end])),
		})
	}
	return points
}
