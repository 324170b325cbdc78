package report

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
)

// fact is one thing to know about the whole report.
type fact struct {
	Name, Value string
	Code        bool // as it is typed
}

// facts of what was run on what. Those that are not known are left out.
func facts(r result.Report) []fact {
	var known []fact
	add := func(name, value string, code bool) {
		if value != "" {
			known = append(known, fact{name, value, code})
		}
	}
	add("Command", r.Command, true)
	if !r.Started.IsZero() {
		add("Started", r.Started.Format("2 January 2006, 15:04:05 MST"), false)
	}
	if loop := oneLoop(r); loop != "" {
		add("Loop", loop+": "+map[string]string{"closed": "callers, "}[loop]+loops[loop], false)
	}
	server := r.Server.Source
	if r.Server.Version != "" {
		server = strings.TrimSuffix("PostgreSQL "+r.Server.Version+", "+r.Server.Source, ", ")
	}
	add("Server", server, false)
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(r.Server.Settings)) {
		settings = append(settings, name+" = "+r.Server.Settings[name])
	}
	add("Its settings", strings.Join(settings, "\n"), true)
	var client []string
	if r.Client.CPUs > 0 {
		client = append(client, plural(r.Client.CPUs, "CPU"))
	}
	if r.Client.OS != "" {
		client = append(client, r.Client.OS)
	}
	add("Machine of the load", strings.Join(client, ", "), false)
	add("Program", strings.Trim("pglimit "+r.Client.Version+", "+r.Client.Go, ", "), false)
	return known
}

// plural is "1 key" or "2 keys".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(int64(n)) + " " + what + "s"
}

// count writes 1234567 as 1,234,567.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
