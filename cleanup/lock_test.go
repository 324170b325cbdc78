package cleanup

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fakeTable is a table of locks that says when it is asked something, and answers what
// it is told.
type fakeTable struct {
	rate.Session
	beats     chan struct{} // with room for those that succeed, the taking among them
	beatErr   error
	unlocks   int
	unlockCtx error
	unlockErr error
}

func (f *fakeTable) Pipeline(ctx context.Context, statements ...rate.Statement) (int, error) {
	ours := statements[1].Into[0].(*bool)
	if statements[1].SQL == unlockSQL {
		f.unlocks++
		f.unlockCtx = ctx.Err()
		*ours = f.unlockErr == nil
		return 0, f.unlockErr
	}
	select {
	case f.beats <- struct{}{}:
		*ours = true
		return 3, nil
	default:
		return 0, f.beatErr // nil: another has it
	}
}

func (f *fakeTable) lock(t *testing.T, heartbeat time.Duration, onLost func(error)) gocron.Lock {
	t.Helper()
	l, err := (&Locker{f, LockerConfig{Timeout: time.Second, Heartbeat: heartbeat}}).hold(t.Context(), "job", onLost)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// That no goroutine is left is for TestMain to see.
func TestUnlockReleasesAlthoughItsContextIsCancelled(t *testing.T) {
	t.Parallel()
	table := &fakeTable{beats: make(chan struct{}, 100)}
	l := table.lock(t, 100*time.Millisecond, func(err error) { t.Errorf("lost: %v", err) })
	within(t, "it is taken", table.beats)
	within(t, "a heartbeat", table.beats)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	if table.unlocks != 1 || table.unlockCtx != nil {
		t.Errorf("got %d statements, with a context that says %v; want one, with a live context", table.unlocks, table.unlockCtx)
	}
}

// Another's lock is one at once, a server that does not answer one before the lock ends.
func TestHeartbeatFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	for name, beatErr := range map[string]error{"to another": nil, "no answer": errors.New("broken")} {
		lost := make(chan error, 1)
		table := &fakeTable{beats: make(chan struct{}, 1), beatErr: beatErr}
		begin := time.Now()
		l := table.lock(t, 50*time.Millisecond, func(err error) { lost <- err })
		want := beatErr
		if want == nil {
			want = errAnothers
		}
		if err := within(t, "OnLost is called", lost); !errors.Is(err, ErrLost) || !errors.Is(err, want) || errors.Is(err, ErrLocked) {
			t.Errorf("%s: OnLost: got %v, want ErrLost and the cause", name, err)
		}
		if passed := time.Since(begin); beatErr != nil && passed < 100*time.Millisecond {
			t.Errorf("%s: given up after %v, in the first try", name, passed)
		}
		if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, want) {
			t.Errorf("%s: Unlock: got %v, want ErrLost and the cause", name, err)
		}
	}
}

func TestUnlockFindsThatTheLockIsLost(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	l := (&fakeTable{beats: make(chan struct{}, 1), unlockErr: broken}).lock(t, time.Hour, nil)
	if err := l.Unlock(t.Context()); !errors.Is(err, ErrLost) || !errors.Is(err, broken) {
		t.Errorf("got %v, want ErrLost and the cause", err)
	}
}
