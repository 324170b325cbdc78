package bench

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/result"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
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

func (b bucketOfOne) Take(_ context.Context, _ pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
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

// stagedLoad runs a closed loop of 16 callers over the stages, with room for so few decisions
// that denials are thinned: for 200 ms, or for longer on a busy machine.
func stagedLoad(t *testing.T, interval time.Duration, uncounted int, longer time.Duration) (run result.Run) {
	t.Helper()
	const room = 4000
	c := scenario.Custom()
	c.Callers, c.Keys, c.Limit = 16, 1, pglimit.Every(interval)
	for length := 200 * time.Millisecond; length < time.Minute && run.Decisions < 2*room; length *= 4 {
		d := fakeAudited(t, c, newBucketOfOne(interval, uncounted, longer), room)
		run = d.ran(t.Context(), length)
		run.Stages = withStages(run.Stages, readStages([]instance{{limiter: d.load.callers[0].limiter}}))
	}
	return run
}

// Through combining and memory no fault is seen that is not there.
func TestStagesRaiseNoFalseAlarm(t *testing.T) {
	t.Parallel()
	got := stagedLoad(t, 5*time.Millisecond, 0, 0)
	if got.Audit.OverTokens != 0 || got.Audit.DenialsNotDue != 0 || !got.Audit.Complete || got.Audit.JudgedDenials == 0 {
		t.Errorf("%s: %+v", got.Verdict(), got.Audit)
	}
	s := got.Stages
	if !s.Combining || !s.Memory || s.Leases || s.RememberedRatio < 0.5 || s.RememberedRatio >= 1 {
		t.Errorf("%+v, of %d decisions; want most of them from memory", s, got.Decisions)
	}
	if s.CallersPerRoundTrip < 1 || s.RequestsPerRoundTrip != 1 {
		t.Errorf("%v callers and %v requests per trip", s.CallersPerRoundTrip, s.RequestsPerRoundTrip)
	}
}

func TestStagesHideNoGrant(t *testing.T) {
	t.Parallel()
	if got := stagedLoad(t, time.Hour, 1, 0); got.Audit.OverTokens != 1 {
		t.Errorf("one token too many was granted: %s", got.Verdict())
	}
}

// leaser is a fake that has leases.
type leaser struct{ fake }

func (leaser) Lease(context.Context, pglimit.Session, pglimit.LeaseRequest) (pglimit.Lease, error) {
	return pglimit.Lease{}, nil
}

func TestLeasesAreForStrategiesThatHaveThem(t *testing.T) {
	t.Parallel()
	c := scenario.Custom()
	c.Stages.Leases = true
	for _, s := range []pglimit.Strategy{leaser{fake{name: "has"}}, fake{name: "has_not"}} {
		d := fakeDrive(t, c, s)
		d.elapsed = time.Second
		// What is set aside is denied, and nobody has got it: such denials are not judged.
		add(&d.recorders[0].history, 0, denied, 1, 2, 3)
		run := d.summarize(DefaultAudit)
		if run.Stages.Leases != (s.Name() == "has") {
			t.Errorf("%s leases: %v", s.Name(), run.Stages.Leases)
		}
		if judged := run.Audit.JudgedDenials; (judged == 0) != (s.Name() == "has") {
			t.Errorf("%s: %d denials judged", s.Name(), judged)
		}
	}
}

func TestWhatStagesCameTo(t *testing.T) {
	t.Parallel()
	got := withStages(result.Stages{Memory: true}, pglimit.Stats{
		Denied: pglimit.BySource{pglimit.FromMemory: 1}, Allowed: pglimit.BySource{pglimit.FromLease: 2, pglimit.FromDatabase: 3},
		RoundTrips: 4, Requests: 5,
	})
	// 4 trips, 1 + 2 + 3 decisions.
	for what, c := range map[string]struct{ got, want float64 }{
		"from memory":       {got.RememberedRatio, 1.0 / 6},
		"from leases":       {got.LeasedRatio, 2.0 / 6},
		"callers per trip":  {got.CallersPerRoundTrip, 3.0 / 4},
		"requests per trip": {got.RequestsPerRoundTrip, 5.0 / 4},
	} {
		if math.Abs(c.got-c.want) > 0.001 {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if idle := withStages(result.Stages{}, pglimit.Stats{}); idle != (result.Stages{}) {
		t.Error("nothing divided by nothing is not 0")
	}
}
