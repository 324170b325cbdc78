package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Write writes the report as one indented JSON object.
func (r Report) Write(w io.Writer) error {
	if r.Runs == nil {
		r.Runs = []Run{} // a script can count on a list
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// ReadFile reads a report that [Report.Write] has written.
func ReadFile(name string) (r Report, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s is no report of \"pglimit bench --output json\": %w", name, err)
	}
	if len(r.Runs) == 0 && len(r.Capacity) == 0 {
		return r, fmt.Errorf("%s has no runs: it must be what \"pglimit bench --output json\" has printed", name)
	}
	if len(r.Scenarios) == 0 {
		return r, fmt.Errorf("%s names no scenarios: it is of an earlier pglimit, run the bench again", name)
	}
	return r, nil
}
