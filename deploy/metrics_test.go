package deploy_test

import (
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// scraped is every metric of a scrape, with the values of its labels.
type scraped map[string]map[string][]string

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
		labels := map[string][]string{"job": {"shop"}, "instance": {"127.0.0.1:80"}} // which Prometheus adds
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = append(labels[label.GetName()], label.GetValue())
			}
		}
		if family.GetType() != dto.MetricType_HISTOGRAM {
			s[family.GetName()] = labels
			continue
		}
		s[family.GetName()+"_sum"], s[family.GetName()+"_count"] = labels, labels
		labels = maps.Clone(labels)
		labels["le"] = []string{"+Inf"}
		s[family.GetName()+"_bucket"] = labels
	}
	return s
}

var (
	selector = regexp.MustCompile(`\b((?:pglimit|http)_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)([=!]~?)"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) ?\(([^)]*)\)`)
	word     = regexp.MustCompile(`\w+`)
)

// metrics that an expression reads. promtool checks its syntax.
func metrics(expr string) (names []string) {
	for _, found := range selector.FindAllStringSubmatch(expr, -1) {
		names = append(names, found[1])
	}
	return names
}

// grouped are the labels by which an expression groups and matches.
func grouped(expr string) (labels []string) {
	for _, list := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, word.FindAllString(list[1], -1)...)
	}
	return labels
}

// faults are what a scrape lacks of what the expression reads. Each value of a list, as in
// source=~"database|lease", must be one that there is.
func (s scraped) faults(expr string) (faults []string) {
	for _, found := range selector.FindAllStringSubmatch(expr, -1) {
		labels := s[found[1]]
		if labels == nil {
			faults = append(faults, "there is no "+found[1])
			continue
		}
		for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
			if labels[m[1]] == nil {
				faults = append(faults, found[1]+" has no label "+m[1])
			}
			for value := range strings.SplitSeq(m[3], "|") {
				pattern := regexp.MustCompile("^(?:" + value + ")$")
				if !strings.HasPrefix(m[2], "!") && !slices.ContainsFunc(labels[m[1]], pattern.MatchString) {
					faults = append(faults, "no "+found[1]+" has "+m[0])
				}
			}
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
			for _, label := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(grouped(target.Expr), label[1]) {
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
		for _, name := range metrics(parts[1]) {
			if s[name][v.Name] == nil {
				t.Errorf("variable %s: %s has no such label, or is not there", v.Name, name)
			}
		}
	}
}

func TestTheAlertsKnowTheirLabels(t *testing.T) {
	t.Parallel()
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, r := range readRules(t) {
		for _, text := range r.Annotations {
			for _, named := range label.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(grouped(r.Expr), named[1]) {
					t.Errorf("%s: its text names %s, which the expression does not keep", r.Alert, named[1])
				}
			}
		}
	}
}

// What is exported is shown: a new number of Stats has a panel, too. And what is shown is exported.
func TestEveryMetricHasAPanel(t *testing.T) {
	t.Parallel()
	s, shown := scrape(t), map[string]bool{}
	for where, expr := range expressions(t, readDashboard(t)) {
		for _, name := range metrics(expr) {
			shown[name] = true
		}
		for _, fault := range s.faults(expr) {
			t.Errorf("%s: %s", where, fault)
		}
	}
	// The alerts need these only: they are times, not to be drawn.
	for _, name := range []string{"pglimit_database_stats_reset_timestamp_seconds", "pglimit_database_cleanup_due_timestamp_seconds"} {
		shown[name] = true
	}
	for name := range s {
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
