package cleanup

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// fakeStrategy sweeps what its function says. Nothing else of it is called.
type fakeStrategy struct {
	rate.Sweeper
	name  string
	sweep func(ctx context.Context, from rate.Cursor, limit int) (rate.Swept, error)
}

func (f fakeStrategy) Name() string { return f.name }

func (f fakeStrategy) Sweep(ctx context.Context, _ rate.Session, from rate.Cursor, limit int) (rate.Swept, error) {
	return f.sweep(ctx, from, limit)
}

// rows is a strategy whose table has so many rows, all of them to be removed.
func rows(name string, n int) fakeStrategy {
	return fakeStrategy{name: name, sweep: func(_ context.Context, from rate.Cursor, limit int) (rate.Swept, error) {
		next := min(int(from)+limit, n)
		return rate.Swept{Removed: int64(next - int(from)), Next: rate.Cursor(next), Done: next == n}, nil
	}}
}

func failing(name string, err error) fakeStrategy {
	return fakeStrategy{name: name, sweep: func(context.Context, rate.Cursor, int) (rate.Swept, error) {
		return rate.Swept{}, err
	}}
}

// blocking is a strategy whose batches announce themselves and end when they are let
// go, or cancelled. The table has no end.
func blocking(name string) (strategy fakeStrategy, began chan context.Context, letGo chan struct{}) {
	began, letGo = make(chan context.Context, 100), make(chan struct{})
	return fakeStrategy{name: name, sweep: func(ctx context.Context, from rate.Cursor, _ int) (rate.Swept, error) {
		select {
		case began <- ctx:
		default: // nobody looks any more
		}
		select {
		case <-letGo:
			return rate.Swept{Removed: 1, Next: from + 1}, nil
		case <-ctx.Done():
			return rate.Swept{}, ctx.Err()
		}
	}}, began, letGo
}

// fakeLocker has one lock, and a claim for whoever asks, unless it is to fail.
type fakeLocker struct {
	mu       sync.Mutex
	claimErr error
	held     bool
	ctx      context.Context //nolint:containedctx // of the holder
	lose     context.CancelCauseFunc
}

func (f *fakeLocker) claim(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claimErr
}

func (f *fakeLocker) hold(ctx context.Context, _ string) (turn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held {
		return nil, ErrLocked
	}
	f.held = true
	f.ctx, f.lose = context.WithCancelCause(ctx)
	return f, nil
}

func (f *fakeLocker) Context() context.Context { return f.ctx }

func (f *fakeLocker) Unlock(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
	return nil
}

func (f *fakeLocker) isHeld() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held
}

func testCleaner(t *testing.T, config Config, strategies ...rate.Sweeper) (*Cleaner, *fakeLocker) {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Pause == 0 {
		config.Pause = -1
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		t.Fatal(err)
	}
	locker := &fakeLocker{}
	return newCleaner(nil, locker, strategies, config), locker
}

// within waits for something that has to happen, at most as long as a test may
// hang.
func within[T any](t *testing.T, what string, events <-chan T) T {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(time.Minute):
		t.Fatalf("it takes too long until %s", what)
		panic("unreachable")
	}
}
