package deploy_test

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// scraped is every series of a scrape by its metric, each as labels with their values.
type scraped map[string][]map[string]string

// scrape the shop.
func scrape(t *testing.T) scraped {
	t.Helper()
	families, err := shop.registry.Gather()
	must(t, err)
	return newScraped(slices.Values(families))
}

func newScraped(families iter.Seq[*dto.MetricFamily]) scraped {
	s := scraped{}
	for family := range families {
		name := family.GetName()
		for _, metric := range family.GetMetric() {
			labels := map[string]string{"job": "shop", "instance": "127.0.0.1:80"} // which Prometheus adds
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if family.GetType() != dto.MetricType_HISTOGRAM {
				s[name] = append(s[name], labels)
				continue
			}
			s[name+"_sum"], s[name+"_count"] = append(s[name+"_sum"], labels), append(s[name+"_count"], labels)
			labels = maps.Clone(labels)
			labels["le"] = "+Inf"
			s[name+"_bucket"] = append(s[name+"_bucket"], labels)
		}
	}
	return s
}

// faults are what a scrape lacks of what the expression reads and groups by.
func (s scraped) faults(expr string) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	selectors, grouped, err := read(expr)
	if err != nil || len(selectors) == 0 {
		fault("%d metrics, %v, in %s", len(selectors), err, expr)
	}
	labels := map[string]bool{}
	for _, selector := range selectors {
		series := s[selector.metric]
		if len(series) == 0 {
			fault("there is no %s", selector.metric)
			continue
		}
		for label := range series[0] {
			labels[label] = true
		}
		for _, m := range selector.matchers {
			if _, there := series[0][m.label]; !there {
				fault("%s has no label %s", selector.metric, m.label)
			}
		}
		if !slices.ContainsFunc(series, func(of map[string]string) bool {
			return !slices.ContainsFunc(selector.matchers, func(m matcher) bool { return !m.matches(of[m.label]) })
		}) {
			fault("no %s has %v", selector.metric, selector.matchers)
		}
		// Each value of a list, as in source=~"database|lease", is one that there is.
		for _, m := range selector.matchers {
			for value := range strings.SplitSeq(m.value, "|") {
				m := matcher{m.label, "=~", value}
				if !slices.ContainsFunc(series, func(of map[string]string) bool { return m.matches(of[m.label]) }) {
					fault("no %s has %s %q", selector.metric, m.label, value)
				}
			}
		}
	}
	for _, label := range grouped {
		if !labels[label] {
			fault("it groups by %s, which none of its metrics has", label)
		}
	}
	return faults
}

// filled is an expression of the dashboard with values for its variables. Those of Grafana's own are
// short, as a test lasts.
func filled(t *testing.T, d dashboard, where, expr string) string {
	t.Helper()
	return regexp.MustCompile(`\$\w+`).ReplaceAllStringFunc(expr, func(v string) string {
		switch v {
		case "$__rate_interval":
			return "5s"
		case "$__range":
			return "10s"
		case "$1": // of label_replace
			return v
		}
		if !slices.ContainsFunc(d.Templating.List, func(known variable) bool { return "$"+known.Name == v }) {
			t.Errorf("%s: there is no variable %s", where, v)
		}
		return ".+"
	})
}

// expressions of the dashboard, by the row and the panel where they stand.
func expressions(t *testing.T, d dashboard) map[string]string {
	t.Helper()
	all, row := map[string]string{}, ""
	for _, p := range d.Panels {
		if p.Type == "row" {
			row = p.Title
		}
		for _, target := range p.Targets {
			where := row + ": " + p.Title + " " + target.RefID
			all[where] = filled(t, d, where, target.Expr)
		}
	}
	return all
}

// Legends, variables and texts name labels that there are.
func TestTheDashboardKnowsItsLabels(t *testing.T) {
	t.Parallel()
	d, s := readDashboard(t), scrape(t)
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			_, grouped, _ := read(target.Expr)
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(grouped, label[1]) {
					t.Errorf("%s %s: the legend names %s, which the expression does not keep", p.Title, target.RefID, label[1])
				}
			}
		}
	}
	query := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range d.Templating.List[1:] {
		parts := query.FindStringSubmatch(v.Definition)
		if len(parts) != 3 || parts[2] != v.Name {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
			continue
		}
		expr := regexp.MustCompile(`\{__name__=~"(\w+)\|(\w+)"\}`).ReplaceAllString(filled(t, d, v.Name, parts[1]), "$1 or $2")
		for _, fault := range s.faults("max by (" + parts[2] + ") (" + expr + ")") {
			t.Errorf("variable %s: %s", v.Name, fault)
		}
	}
}

func TestTheAlertsKnowTheirLabels(t *testing.T) {
	t.Parallel()
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, r := range readRules(t) {
		_, grouped, _ := read(r.Expr)
		for _, text := range r.Annotations {
			for _, named := range label.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(grouped, named[1]) {
					t.Errorf("%s: its text names %s, which the expression does not keep", r.Alert, named[1])
				}
			}
		}
	}
}

// What is exported is shown: a new number of Stats has a panel, too.
func TestEveryMetricHasAPanel(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, expr := range expressions(t, readDashboard(t)) {
		selectors, _, _ := read(expr)
		for _, selector := range selectors {
			shown[selector.metric] = true
		}
	}
	// The alerts need these only: they are times, not to be drawn.
	for _, name := range []string{"pglimit_database_stats_reset_timestamp_seconds", "pglimit_database_cleanup_due_timestamp_seconds"} {
		shown[name] = true
	}
	for name := range scrape(t) {
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
