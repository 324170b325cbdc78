package scenario

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// The example of the documentation is what it says.
func TestExampleOfAPlan(t *testing.T) {
	t.Parallel()
	got, err := ReadFile(filepath.Join("..", "..", "..", "..", "..", "docs", "plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want := Custom()
	want.Name, want.Title = "black-friday", "a quiet hour, a rush, and its end"
	want.Limit = pglimit.PerMinute(100).WithBurst(20)
	want.Keys, want.Distribution, want.Exponent = 100_000, Zipf, 1.2
	want.Costs = []Cost{{1, 9}, {5, 1}}
	want.Callers, want.Instances, want.Conns, want.Timeout = 256, 2, 16, 500*time.Millisecond
	want.Phases = []Phase{{200, 5 * time.Second}, {2000, 10 * time.Second}, {200, 5 * time.Second}}
	want.Warmup = time.Second
	if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestWhatIsLeftOutIsTheDefault(t *testing.T) {
	t.Parallel()
	got, err := read([]byte("name: one\n---\nname: two\nleases: true\nwith-rows: true\nlatency: 5ms\nno-memory: true\n"))
	if err != nil {
		t.Fatal(err)
	}
	one, two := Custom(), Custom()
	one.Name, one.Title = "one", "one"
	two.Name, two.Title = "two", "two"
	two.WithRows, two.Stages.Leases, two.Stages.NoMemory, two.Latency = true, true, true, 5*time.Millisecond
	if len(got) != 2 || !reflect.DeepEqual(got[0], one) || !reflect.DeepEqual(got[1], two) {
		t.Errorf("%+v\nwant %+v and %+v", got, one, two)
	}
}

// An error names the scenario and the field, as it is called there.
func TestErrorsOfAPlan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                              "it is empty",
		"keys: 5":                       "scenario 1 has no name",
		"name: a\n---\n~: 5":            "line 3: a name is missing here",
		"name: a\nkeys: 0":              `scenario "a": keys is 0: it must be from 1 to`,
		"name: a\nrate: 5":              "rate",
		"name: a\nkeys: many":           "line 2: `many` is not a whole number",
		"name: a\ncompare-by: speed":    `scenario "a": compare-by is "speed": it must be grants, denials or decisions`,
		"name: a\nkey: 5":               "line 2: there is no field key in a scenario",
		"name: a\nphases: [{speed: 5}]": "line 2: there is no field speed here, only rate, duration",
		"name: a\nphases: 5":            "line 2: `5` is not a list of phases",
		"name: a\nwarmup: 5":            "line 2: `5` is not a duration such as 500ms",
	} {
		if _, err := read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	name := filepath.Join(t.TempDir(), "plan.yaml")
	if err := os.WriteFile(name, []byte("name: a\nkeys: -1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(name); err == nil || !strings.HasPrefix(err.Error(), name+": scenario") {
		t.Errorf("%v does not name the file", err)
	}
}

func TestSetASingleField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		field, value string
		want         func(*Scenario)
	}{
		{"keys", "7", func(s *Scenario) { s.Keys, s.AtMost = 7, 0 }},
		{"limit", "5/1m burst 9", func(s *Scenario) { s.Limit, s.AtMost = pglimit.PerMinute(5).WithBurst(9), 0 }},
		{"burst", "7", func(s *Scenario) { s.Limit, s.AtMost = s.Limit.WithBurst(7), 0 }},
		{"costs", "[{tokens: 3, share: 1}]", func(s *Scenario) { s.Costs = []Cost{{3, 1}} }},
		{"rps", "50", func(s *Scenario) { s.Phases = []Phase{{50, 10 * time.Minute}} }},
		{"phases", "[{rate: 5, duration: 1s}]", func(s *Scenario) { s.Phases = []Phase{{5, time.Second}} }},
		{"durability", "durable", func(s *Scenario) { s.Durability = pglimit.Durable }},
		{"leases", "true", func(s *Scenario) { s.Stages.Leases = true }},
		{"duration", "1m", func(s *Scenario) { *s = s.lasting(time.Minute) }},
	} {
		got, want := experiment(t), experiment(t)
		c.want(&want)
		if err := got.Set(c.field, c.value); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s: %v, %+v\nwant %+v", c.field, c.value, err, got, want)
		}
	}
	for text, want := range map[string]string{
		"keys=many":       "keys is \"many\": `many` is not a whole number",
		"speed=5":         `speed is "5": there is no field speed in a scenario`,
		"limit=none":      `limit is "none": limit: `,
		"durability=some": `durability is "some": durability: `,
		"rps=x":           `rps is "x": it must be a number`,
		"duration=5":      `duration is "5": it must be a duration`,
		"burst=0":         `burst is "0": it must be a whole number`,
	} {
		s := Custom()
		field, value, _ := strings.Cut(text, "=")
		if err := s.Set(field, value); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
