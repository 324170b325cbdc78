package report

import (
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/chart"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// album is the pictures of one scenario.
type album struct {
	id       string
	scenario result.Scenario
	lines    []line
	grain    float64 // of moments, in seconds; 0: as they are
	drawn    int
}

// line is a strategy in the pictures, with its typical run.
type line struct {
	strategy  string
	style     int
	row       result.Row
	run       result.Run
	intervals []interval
}

// drawer makes a picture, or nil if there is nothing to see.
type drawer interface {
	draw(a *album, id, number string) chart.Picture
}

// numbered is a picture with its number in the write-up's dashboard. No number: none.
type numbered struct {
	number string
	drawer
}

// chapter is pictures under one heading.
type chapter struct {
	title, about string
	pictures     []numbered
}

func newAlbum(id string, g result.Group) *album {
	a := &album{id: id, scenario: g.Scenario}
	styles := stylesOf(g)
	for _, row := range g.Rows {
		run := row.Typical(g.Scenario)
		a.lines = append(a.lines, line{
			strategy: row.Strategy, style: styles[row.Strategy], row: row, run: run,
			intervals: thin(run.Series, factor(len(run.Series), mostPoints)),
		})
		a.grain = max(a.grain, grain(run.Series))
	}
	// Solid lines first: the dashed ones after them leave gaps to see them through.
	slices.SortStableFunc(a.lines, func(a, b line) int { return a.style - b.style })
	return a
}

// chapters of a scenario.
func (a *album) chapters() []chapter {
	if a.scenario.AtMost > 0 {
		return dashboard
	}
	return []chapter{
		{title: "Throughput and the limit", pictures: plain(grantedOverTime, deniedOverTime, failedOverTime, grantedShare, limitPicture{})},
		{title: "Latency", pictures: plain(grantCurve, denialCurve, grantP50, grantP99, denialP50, denialP99, grantMean, denialMean, grantMax, denialMax)},
		{title: "Cost and totals", pictures: plain(tripsOverTime, walOverTime, deadlocksOverTime, meanInAll, grantedInAll, deniedInAll, grantedPercent, deniedPercent, failedPercent)},
	}
}

func plain(drawers ...drawer) []numbered {
	var all []numbered
	for _, d := range drawers {
		all = append(all, numbered{drawer: d})
	}
	return all
}

func (a *album) draw(all []numbered) ([]template.HTML, error) {
	var figures []template.HTML
	for _, n := range all {
		a.drawn++
		picture := n.draw(a, a.id+"-"+strconv.Itoa(a.drawn), n.number)
		if picture == nil || picture.Empty() {
			continue
		}
		html, err := picture.HTML()
		if err != nil {
			return nil, err
		}
		figures = append(figures, html)
	}
	return figures, nil
}

// title with its number.
func titled(number, text string) string {
	if number != "" {
		return number + ". " + text
	}
	return text
}

// quiet says what did not happen, instead of a picture of it.
func (a *album) quiet() string {
	var granted, denied, failed, deadlocks int64
	unknown := false
	for _, line := range a.lines {
		for _, run := range line.row.Runs {
			granted, denied, failed = granted+run.Allowed, denied+run.Denied, failed+run.Failed()
			if run.Deadlocks == nil {
				unknown = true
			} else {
				deadlocks += *run.Deadlocks
			}
		}
	}
	var said []string
	switch {
	case failed == 0 && deadlocks == 0 && !unknown:
		said = append(said, "No request failed; no deadlock.")
	case failed == 0:
		said = append(said, "No request failed.")
	case deadlocks == 0 && !unknown:
		said = append(said, "No deadlock.")
	}
	if unknown {
		said = append(said, "Whether there were deadlocks is not known of all runs.")
	}
	if granted == 0 {
		said = append(said, "No request was granted.")
	}
	if denied == 0 {
		said = append(said, "No request was denied.")
	}
	return strings.Join(said, " ")
}

// thinned says how many points became one, if they did.
func (a *album) thinned() string {
	most := 1
	for _, line := range a.lines {
		most = max(most, factor(len(line.run.Series), mostPoints))
	}
	if most == 1 {
		return ""
	}
	return fmt.Sprintf("Over time, each point stands for up to %d that were measured: counts are added up, p99 and longest times are the worst of them.", most)
}
