package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// differing parameters of a scenario, by the names that they have in the JSON: a
// parameter that is added there is compared here.
func differing(old, now result.Scenario) (list []string) {
	a, b := fields(old.Parameters), fields(now.Parameters)
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if x, y := value(a[name]), value(b[name]); x != y && name != "seed" {
			list = append(list, fmt.Sprintf("%s: %s %s, now %s", old.Name, strings.ReplaceAll(name, "_", " "), x, y))
		}
	}
	return list
}

func fields(p result.Parameters) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	text, err := json.Marshal(p)
	if err != nil {
		return nil // a number that JSON cannot write: there is no such load
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil
	}
	return all
}

func value(text json.RawMessage) string {
	if len(text) == 0 {
		return "none"
	}
	return strings.Trim(string(text), `"`)
}

// surroundings that are not the same: the server, its settings, the machine, the library.
func surroundings(old, now result.Report) (list []string) {
	say := func(what, a, b string) {
		if a == "" {
			a = "none"
		}
		if b == "" {
			b = "none"
		}
		if a != b {
			list = append(list, fmt.Sprintf("%s: %s, now %s", what, a, b))
		}
	}
	say("server version", old.Server.Version, now.Server.Version)
	names := maps.Clone(old.Server.Settings)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, now.Server.Settings)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		say("server's "+name, old.Server.Settings[name], now.Server.Settings[name])
	}
	say("pglimit", old.Client.Version, now.Client.Version)
	say("Go", old.Client.Go, now.Client.Go)
	say("machine", old.Client.OS, now.Client.OS)
	say("CPUs", fmt.Sprint(old.Client.CPUs), fmt.Sprint(now.Client.CPUs))
	for _, r := range []struct {
		name string
		result.Report
	}{{"old", old}, {"new", now}} {
		if r.Interrupted {
			list = append(list, "the "+r.name+" report was interrupted")
		}
	}
	return list
}
