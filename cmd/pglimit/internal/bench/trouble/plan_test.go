package trouble

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestNoTrouble(t *testing.T) {
	t.Parallel()
	if report, err := (Plan{}).Run(t.Context(), Target{}); err != nil || report != (Report{}) {
		t.Errorf("no trouble: %v, %+v", err, report)
	}
	if (Plan{}).Any() || !(Plan{LockShare: 0.1}).Any() || !(Plan{RestartAfter: 1}).Any() {
		t.Error("Any")
	}
}

func TestHowManyKeysAreLocked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		share      float64
		keys, want int
	}{{0.01, 1, 1}, {0.01, 1000, 10}, {0.015, 100, 2}, {1, 7, 7}, {1e-9, 1000, 1}, {0.5, 3, 2}} {
		h := newHolder(Plan{LockShare: test.share}, Target{Keys: make([]string, test.keys)})
		if h.atATime != test.want {
			t.Errorf("%v of %d keys are %d, want %d", test.share, test.keys, h.atATime, test.want)
		}
	}
}

func TestOneRestart(t *testing.T) {
	t.Parallel()
	const runs, after, takes = time.Minute, 5 * time.Second, 3 * time.Second
	broken := errors.New("it does not come back")
	for _, test := range []struct {
		name   string
		runs   time.Duration
		fails  error
		report Report
		ends   time.Duration
	}{
		{"in time", runs, nil, Report{Restarted: true, Away: takes}, runs},
		{"the run ends before", after - 1, nil, Report{}, after - 1},
		{"the run ends meanwhile", after + 1, nil, Report{Restarted: true, Away: takes}, after + takes},
		{"it fails", runs, broken, Report{}, after + takes},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.runs)
				defer cancel()
				began, restarts := time.Now(), 0
				report, err := Plan{RestartAfter: after}.Run(ctx, Target{Restart: func(ctx context.Context) error {
					restarts++
					time.Sleep(takes)
					return errors.Join(ctx.Err(), test.fails)
				}})
				// Nothing else is planned, so it may return as soon as the server is back.
				if took := time.Since(began); took > test.ends {
					t.Errorf("it took %v, want %v at most", took, test.ends)
				}
				if !errors.Is(err, test.fails) || report != test.report || restarts > 1 {
					t.Errorf("%d restarts, %+v, %v", restarts, report, err)
				}
			})
		})
	}
}
