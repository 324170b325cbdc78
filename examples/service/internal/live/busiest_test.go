package live

import (
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// granted one token at each of these times, in seconds.
func granted(key string, at ...float64) (grants []pglimit.Decision) {
	for _, seconds := range at {
		grants = append(grants, pglimit.Decision{Limiter: "search", Key: key, Granted: 1, At: time.Unix(0, int64(seconds*1e9))})
	}
	return grants
}

func TestTheBusiestUser(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		samples [][]pglimit.Decision
		want    int64 // after the last sample
	}{
		"nobody":                           {[][]pglimit.Decision{nil}, 0},
		"as fast as the limit":             {[][]pglimit.Decision{granted("ann", 0, 2, 4), granted("ann", 6, 8, 10)}, 6},
		"one too many":                     {[][]pglimit.Decision{granted("ann", 0, 2, 4), granted("ann", 6, 8, 9, 10)}, 7},
		"slower":                           {[][]pglimit.Decision{granted("ann", 0, 2.1, 4.2, 6.3, 8.4, 10.5)}, 5},
		"instances that are told one late": {[][]pglimit.Decision{granted("ann", 2, 4, 6, 8, 10), granted("ann", 0)}, 6},
		"users are counted each":           {[][]pglimit.Decision{granted("ann", 0, 2), granted("bob", 1, 3, 5)}, 3},
		"long ago":                         {[][]pglimit.Decision{granted("ann", 0, 2, 4), granted("bob", 60), nil}, 1},
	} {
		users, got := busiest{}, int64(0)
		for _, grants := range c.samples {
			got = users.add(grants)
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := allowed(pglimit.Every(2 * time.Second)); got != 6 {
		t.Errorf("the limit allows %d", got)
	}
}

func TestUsersWhoLeftAreForgotten(t *testing.T) {
	t.Parallel()
	users := busiest{}
	users.add(granted("ann", 0))
	users.add(granted("bob", 60))
	if len(users) != 1 {
		t.Errorf("%d users are kept", len(users))
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var durations []time.Duration
	for i := range 101 {
		durations = append(durations, time.Duration(100-i)*time.Second)
	}
	if p50, p99 := percentile(durations, 50), percentile(durations, 99); *p50 != 50 || *p99 != 99 {
		t.Errorf("p50 %v, p99 %v", *p50, *p99)
	}
	if p := percentile(nil, 50); p != nil {
		t.Errorf("of nothing: %v", *p)
	}
}

// While Postgres does not answer, its panels have gaps, and the others go on.
func TestWithoutPostgres(t *testing.T) {
	t.Parallel()
	at := time.Now()
	before := &reading{at: at, instances: make([]pglimit.Stats, 2), database: &database{}}
	now := &reading{at: at.Add(time.Second), instances: make([]pglimit.Stats, 2)}
	now.instances[0].Failed[pglimit.CauseUnavailable] = 7
	gaps := 0
	for _, p := range panels([]string{"one", "two"}, pglimit.Every(time.Second)) {
		values := p.values(now, before)
		if len(values) != len(p.Lines) {
			t.Errorf("%s: %d numbers for %q", p.Title, len(values), p.Lines)
		}
		if values[0] == nil {
			gaps++
		}
		if p.Title == "Requests without a decision" && *values[0] != 7 {
			t.Errorf("%v failed", *values[0])
		}
	}
	if gaps != 4+3 { // and there are no durations
		t.Errorf("%d panels have no number", gaps)
	}
}
