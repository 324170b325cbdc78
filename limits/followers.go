package limits

import (
	"context"
	"encoding/json"
)

// Followers counts the processes that follow the rules of a limiter, within two seconds: see [Table.Followers].
type Followers struct {
	// Instances is the number of live Limiters of that name in all processes, with LimitsFrom as their Config.Limits. A
	// process that crashed counts for half a minute. Not counted: calls of pglimit.allow in SQL, which follow at once,
	// and services whose role cannot write pglimit.instances.
	Instances int64 `json:"instances"`

	// Servers is the number of live instances of "pglimit serve", which follow too if they are asked for the limiter.
	Servers int64 `json:"servers"`

	// Near is a known limiter with a similar name, if the limiter has no live Limiter: "api" for "apii". Empty if there
	// is none.
	Near string `json:"near,omitempty"`
}

// Followers counts the processes that follow the rules of a limiter; if it is empty, of any limiter. Rules with the
// action places are followed by semaphores, which are not counted.
func (t *Table) Followers(ctx context.Context, limiter string) (f Followers, err error) {
	var text string
	if err = t.row(ctx, "select pg_catalog.to_jsonb(f.*)::text from pglimit.limit_followers($1::text) f", []any{null(limiter)}, &text); err != nil {
		return f, err
	}
	answer := struct {
		*Followers
		Known []string `json:"known"`
	}{Followers: &f}
	if err = json.Unmarshal([]byte(text), &answer); err == nil && f.Instances == 0 {
		f.Near = nearest(limiter, answer.Known)
	}
	return f, err
}

// nearest returns the known name that is most similar, if it may have been meant: one edit per three letters, at most
// two.
func nearest(name string, known []string) (near string) {
	best := min(len(name)/3, 2) + 1
	for _, other := range known {
		if other == name || max(len(name)-len(other), len(other)-len(name)) >= best {
			continue
		}
		if d := distance(name, other); d < best {
			near, best = other, d
		}
	}
	return near
}

// distance is how many bytes must be inserted, removed or replaced (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0] // of the row above, one to the left
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
