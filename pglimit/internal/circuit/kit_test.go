package circuit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/circuit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	late  = time.Second
	pause = 200 * time.Millisecond
)

var (
	errGone  = fmt.Errorf("%w: connection refused", rate.ErrUnavailable)
	errLost  = fmt.Errorf("%w: connection lost", rate.ErrUnavailable)
	errOther = errors.New("division by zero")
)

// ears hear of changes.
type ears struct {
	mu   sync.Mutex
	open []bool
	why  []error
}

func (e *ears) hear(open bool, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open, e.why = append(e.open, open), append(e.why, why)
}

func deaf(bool, error) {}

// life is the sign of life that a Breaker gets, which a test changes.
type life struct {
	mu   sync.Mutex
	sign func(context.Context) error
}

func (l *life) ask(ctx context.Context) error {
	l.mu.Lock()
	sign := l.sign
	l.mu.Unlock()
	return sign(ctx)
}

// admit a caller, who gets this sign of life if it asks.
func (l *life) admit(ctx context.Context, b *circuit.Breaker, sign func(context.Context) error) error {
	l.mu.Lock()
	l.sign = sign
	l.mu.Unlock()
	return b.Admit(ctx)
}

// returns is a call that ends like this.
func returns(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// silent is a call that has no answer until its context ends.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func never(t *testing.T) func(context.Context) error {
	return func(context.Context) error {
		t.Error("called, though it is open")
		return nil
	}
}

// open is a Breaker that has just opened.
func open(t *testing.T, late time.Duration, hear func(bool, error)) (*circuit.Breaker, *life) {
	t.Helper()
	l := &life{sign: returns(errGone)}
	b := circuit.New(late, l.ask, hear)
	_ = b.Call(t.Context(), returns(errGone))
	synctest.Wait()
	if !b.Open() {
		t.Fatal("an outage without a sign of life did not open it")
	}
	return b, l
}

// later waits for so long by the test's clock, and until what happens then has happened.
func later(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
