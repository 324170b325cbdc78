package deploy_test

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// dashboard is what the tests look at of grafana/pglimit.json.
type dashboard struct {
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Expr       string     `json:"expr"`
			Datasource datasource `json:"datasource"`
		} `json:"list"`
	} `json:"annotations"`
}

type datasource struct{ UID string }

type panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  datasource `json:"datasource"`
	GridPos     struct{ X, Y, W, H int }
	Targets     []target `json:"targets"`
}

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
	Datasource   datasource
}

type variable struct {
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Definition string          `json:"definition"`
	Query      json.RawMessage `json:"query"`
	Datasource datasource      `json:"datasource"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	file, err := os.ReadFile("grafana/pglimit.json")
	if err == nil {
		err = json.Unmarshal(file, &d)
	}
	must(t, err)
	return d
}

// rule is an alert of prometheus/alerts.yaml.
type rule struct {
	Group       string
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	var all struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	file, err := os.ReadFile("prometheus/alerts.yaml")
	if err == nil {
		err = yaml.Unmarshal(file, &all)
	}
	must(t, err)
	for _, group := range all.Groups {
		for _, r := range group.Rules {
			r.Group = group.Name
			rules = append(rules, r)
		}
	}
	return rules
}

// A panel says what is good and what is bad, reads from the chosen data source, and stands where no
// other does. First comes what an operator looks for first.
func TestTheDashboard(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.SchemaVersion != 42 || d.Templating.List[0].Type != "datasource" || d.Templating.List[0].Name != "datasource" {
		t.Errorf("schema %d, first variable %+v", d.SchemaVersion, d.Templating.List[0])
	}
	const chosen = "${datasource}"
	ids, cells, titles := map[int]string{}, map[[2]int]string{}, map[string]bool{}
	var rows []string
	for _, p := range d.Panels {
		if ids[p.ID] != "" || titles[p.Title] {
			t.Errorf("panel %d, %q: the ID (of %q) or the title is there twice", p.ID, p.Title, ids[p.ID])
		}
		ids[p.ID], titles[p.Title] = p.Title, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if cells[[2]int{x, y}] != "" || x >= 24 {
					t.Fatalf("%q overlaps with %q, or reaches beyond the 24th column", p.Title, cells[[2]int{x, y}])
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || p.Datasource.UID != chosen || len(p.Targets) == 0 {
			t.Errorf("%q: no description, another data source (%q) or no target", p.Title, p.Datasource.UID)
		}
		var refs []string
		for _, target := range p.Targets {
			if target.Datasource.UID != chosen || slices.Contains(refs, target.RefID) {
				t.Errorf("%q, %s: another data source (%q), or a second %[2]s", p.Title, target.RefID, target.Datasource.UID)
			}
			refs = append(refs, target.RefID)
		}
	}
	if len(d.Panels) < 40 || !slices.Equal(rows, []string{"Granted, denied, failed", "How long callers wait", "Is the limit kept?", "Limits in the database", "Does Postgres answer?",
		"What a decision costs", "The tables: writes, vacuum, cleanup, locks", "So many at once: permits", "Limits that yield, and are shared: Config.Adjust, live instances", "Keys that clients make up: Config.NewKeys"}) {
		t.Errorf("%d panels, rows %q", len(d.Panels), rows)
	}
	slices.SortFunc(d.Panels, func(a, b panel) int { return cmp.Or(a.GridPos.Y-b.GridPos.Y, a.GridPos.X-b.GridPos.X) })
	for i, title := range []string{rows[0], "Requests granted", "Requests denied", "Requests without a decision, by cause"} {
		if d.Panels[i].Title != title {
			t.Errorf("in place %d stands %q, not %q", i, d.Panels[i].Title, title)
		}
	}
	for _, v := range d.Templating.List[1:] {
		if v.Datasource.UID != chosen || !strings.Contains(string(v.Query), `"query": `) {
			t.Errorf("variable %s: data source %q, query %s", v.Name, v.Datasource.UID, v.Query)
		}
	}
}

// Each alert says how bad it is, of whom, what to do, and where more is written; and promtool's tests
// let it fire.
func TestTheAlerts(t *testing.T) {
	t.Parallel()
	tests, err := os.ReadFile("prometheus/alerts_test.yaml")
	must(t, err)
	seen := map[string]bool{}
	for _, r := range readRules(t) {
		if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Pglimit") {
			t.Errorf("%s is there twice, or is not Pglimit…", r.Alert)
		}
		seen[r.Alert] = true
		if severity := r.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
			t.Errorf("%s: severity %q", r.Alert, severity)
		}
		if r.Annotations["runbook_url"] != "https://github.com/pglimit/ratelimit/blob/main/docs/alerts.md#"+strings.ToLower(r.Alert) || !strings.Contains(r.Annotations["summary"], "{{ $labels.") || len(r.Annotations["description"]) < 60 {
			t.Errorf("%s: %q", r.Alert, r.Annotations)
		}
		if !strings.Contains(string(tests), `alertname="`+r.Alert+`"`) {
			t.Errorf("no test lets %s fire", r.Alert)
		}
	}
	if len(seen) < 15 {
		t.Errorf("%d alerts", len(seen))
	}
}
