package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/ratelimit/pglimit/internal/wait"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var errAnswer = errors.New("this is the answer")

// A Waiter is used again and again: what one request heard is not heard by the next.
func TestAWaiterHearsItsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wait.Waiter
		for n := range int64(4) {
			w.Begin(rate.Request{Key: "a", Tokens: n})
			if w.Request.Tokens != n || w.Left() {
				t.Errorf("%+v, left %t", w.Request, w.Left())
			}
			ctx := t.Context()
			if n%2 == 1 {
				ctx = context.WithoutCancel(ctx) // which never ends
			}
			answer := func() {
				var err error
				if n == 3 {
					err = errAnswer
				}
				if !w.Answer(rate.Decision{Granted: n}, err) {
					t.Error("it was not heard")
				}
			}
			if n < 2 {
				answer() // before it waits
			} else {
				time.AfterFunc(time.Second, answer)
			}
			d, err := w.Await(ctx, w.Leave)
			if d.Granted != n || errors.Is(err, errAnswer) != (n == 3) {
				t.Errorf("%d: %+v, %v", n, d, err)
			}
			if w.Leave() || w.Left() {
				t.Error("it left after the answer")
			}
		}
	})
}

func TestAWaiterLeavesWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wait.Waiter
		w.Begin(rate.Request{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		d, err := w.Await(ctx, w.Leave)
		if !errors.Is(err, context.DeadlineExceeded) || d != (rate.Decision{}) || time.Since(began) != time.Second || !w.Left() {
			t.Errorf("%+v, %v after %v, left %t", d, err, time.Since(began), w.Left())
		}
		if w.Answer(rate.Decision{Granted: 1}, nil) {
			t.Error("nobody is there to hear it")
		}
		w.Begin(rate.Request{})
		if !w.Answer(rate.Decision{Granted: 2}, nil) {
			t.Error("it was not heard")
		}
		if d, err := w.Await(t.Context(), w.Leave); d.Granted != 2 || err != nil {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// An answer that comes while the caller is about to leave is heard: its tokens are taken.
func TestAnAnswerAheadOfTheEndIsHeard(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var w wait.Waiter
	w.Begin(rate.Request{})
	d, err := w.Await(ended, func() bool {
		if !w.Answer(rate.Decision{Granted: 1}, nil) {
			t.Error("it was not heard")
		}
		return w.Leave()
	})
	if d.Granted != 1 || err != nil {
		t.Errorf("%+v, %v", d, err)
	}
}
