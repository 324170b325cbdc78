package bench

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
)

// bucketOfOne grants a token per interval, as a strategy does, and has faults if told so:
// it does not count its first grants, so many of them, or denies for longer than is due.
type bucketOfOne struct {
	fake

	interval, longer time.Duration

	mu        *sync.Mutex
	next      *time.Time
	uncounted *int
}

func newBucketOfOne(interval time.Duration, uncounted int, longer time.Duration) bucketOfOne {
	return bucketOfOne{
		fake: fake{name: "bucket_of_one"}, interval: interval, longer: longer,
		mu: new(sync.Mutex), next: new(time.Time), uncounted: &uncounted,
	}
}

func (b bucketOfOne) Take(_ context.Context, _ pglimit.Session, requests []pglimit.Request) ([]pglimit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	decisions := make([]pglimit.Decision, len(requests))
	for i, r := range requests {
		now := time.Now().Truncate(time.Microsecond)
		d := pglimit.Decision{At: now}
		for d.Granted < r.Tokens && !now.Before(*b.next) {
			d.Allowed = true
			d.Granted++
			if *b.uncounted--; *b.uncounted < 0 {
				*b.next = now.Add(b.interval + b.longer)
			}
		}
		if d.Granted < r.Tokens {
			d.RetryAfter = b.next.Sub(now)
		}
		decisions[i] = d
	}
	return decisions, nil
}

// stagedLoad runs a closed loop of 16 callers over the stages, for 200 ms, with room for
// so few decisions that denials are thinned.
func stagedLoad(t *testing.T, strategy bucketOfOne) Result {
	t.Helper()
	c := DefaultConfig()
	c.Callers, c.Keys, c.Limit, c.AuditDecisions = 16, 1, pglimit.Every(strategy.interval), 4000
	l, recorders, p := fakeLoad(t, c, strategy)
	elapsed := l.closed(t.Context(), 200*time.Millisecond)
	result := summarize(p, c, recorders, l.callers[0].keys, elapsed)
	stages := readStages([]instance{{limiter: l.callers[0].limiter}})
	result.Stages = result.Stages.since(pglimit.Stats{}, stages)
	return result
}

// Through combining and memory no fault is seen that is not there.
func TestStagesRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	got := stagedLoad(t, newBucketOfOne(5*time.Millisecond, 0, 0))
	if got.Audit.OverTokens != 0 || got.Audit.DenialsNotDue != 0 || !got.Audit.Complete || got.Audit.JudgedDenials == 0 {
		t.Errorf("%s: %+v", got.Verdict(), got.Audit)
	}
	s := got.Stages
	if !s.Combining || !s.Memory || s.Leases || s.decisions() != got.Decisions || s.decided() < got.Allowed || s.Denied[pglimit.FromMemory] < s.decided() {
		t.Errorf("%+v, of %d decisions; want most of them from memory", s, got.Decisions)
	}
	if s.TripsPerDecision() <= 0 || s.TripsPerDecision() >= 0.5 || s.CallersPerTrip() < 1 || s.RequestsPerTrip() != 1 {
		t.Errorf("%v trips per decision, %v callers and %v requests per trip", s.TripsPerDecision(), s.CallersPerTrip(), s.RequestsPerTrip())
	}
}

func TestStagesHideNoGrant(t *testing.T) {
	t.Parallel()
	if got := stagedLoad(t, newBucketOfOne(50*time.Millisecond, 1, 0)); got.Audit.OverTokens != 1 {
		t.Errorf("one token too many was granted: %s", got.Verdict())
	}
}

// The memory believes a RetryAfter that is 2 ms too long.
func TestStagesHideNoUnderAdmission(t *testing.T) {
	t.Parallel()
	got := stagedLoad(t, newBucketOfOne(5*time.Millisecond, 0, 2*time.Millisecond))
	if got.Audit.DenialsNotDue < 10 || got.Audit.OverTokens != 0 {
		t.Errorf("tokens were denied for 2 ms too long: %s", got.Verdict())
	}
}

func TestPublishedStatementsRunWithoutStages(t *testing.T) {
	t.Parallel()
	c := validConfig()
	c.Leases = true
	for _, s := range published.Strategies("schema") {
		if got := c.stages(plan{strategy: s}); got != (Stages{}) {
			t.Errorf("%s: %+v", s.Name(), got)
		}
	}
}

// leaser is a fake that has leases.
type leaser struct{ fake }

func (leaser) Lease(context.Context, pglimit.Session, pglimit.LeaseRequest) (pglimit.Lease, error) {
	return pglimit.Lease{}, nil
}

func TestLeasesAreForStrategiesThatHaveThem(t *testing.T) {
	t.Parallel()
	c := validConfig()
	c.Leases = true
	report := Report{Config: c}
	for _, s := range []pglimit.Strategy{leaser{fake{name: "has"}}, fake{name: "has_not"}} {
		l, recorders, p := fakeLoad(t, c, s)
		if got := c.stages(p).Leases; got != (s.Name() == "has") {
			t.Errorf("%s leases: %v", s.Name(), got)
		}
		// What is set aside is denied, and nobody has got it: such denials are not judged.
		add(&recorders[0].history, 0, denied, 1, 2, 3)
		result := summarize(p, c, recorders, l.callers[0].keys, time.Second)
		if judged := result.Audit.JudgedDenials; (judged == 0) != (s.Name() == "has") {
			t.Errorf("%s: %d denials judged", s.Name(), judged)
		}
		report.Runs = append(report.Runs, result)
	}
	notes := strings.Join(report.notes(), "\n")
	for _, want := range []string{"do not have: has_not.", "has: grants only are audited"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q, but\n%s", want, notes)
		}
	}
}

func TestStagesAreCountedFromTheWarmUp(t *testing.T) {
	t.Parallel()
	before := pglimit.Stats{
		Denied: pglimit.BySource{pglimit.FromMemory: 1}, Allowed: pglimit.BySource{pglimit.FromLease: 2, pglimit.FromDatabase: 3},
		RoundTrips: 4, Requests: 5, LeaseTrips: 6,
	}
	want := before.Plus(before)
	got := Stages{Memory: true}.since(before, want.Plus(before))
	if got.Stats != want || !got.Memory {
		t.Errorf("%+v, want %+v", got, want)
	}
	// (8 + 12) trips, 2 + 4 + 6 decisions.
	for what, c := range map[string]struct{ got, want float64 }{
		"trips per decision": {got.TripsPerDecision(), 20.0 / 12},
		"from memory":        {got.RememberedShare(), 2.0 / 12},
		"from leases":        {got.LeasedShare(), 4.0 / 12},
		"callers per trip":   {got.CallersPerTrip(), 6.0 / 8},
		"requests per trip":  {got.RequestsPerTrip(), 10.0 / 8},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if idle := (Stages{}); idle.TripsPerDecision() != 0 || idle.RememberedShare() != 0 {
		t.Error("nothing divided by nothing is not 0")
	}
}

func TestStagesInWords(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	if got, want := c.stagesText(), "combining, memory of denials, no leases"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.NoMemory, c.Lanes, c.MaxWaiting, c.Leases, c.LeaseTTL = true, 8, 1000, true, 2*time.Second
	if got, want := c.stagesText(), "combining (8 lanes, at most 1,000 waiting), no memory of denials, leases (2s)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for f, want := range map[float64]string{0: "0", 1: "1", 2.25: "2.25", 0.00009964: "0.0000996", 12.345: "12.3"} {
		if got := small(f); got != want {
			t.Errorf("%v is %q, want %q", f, got, want)
		}
	}
	for share, want := range map[float64]string{0: "0 %", 0.5: "50 %", 0.12345: "12.35 %", 0.99999: "99.99 %", 1: "100 %"} {
		if got := percent(share); got != want {
			t.Errorf("%v is %q, want %q", share, got, want)
		}
	}
}
