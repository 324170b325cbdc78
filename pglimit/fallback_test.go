package pglimit

import (
	"context"
	"errors"
	"testing"
)

func TestOnErrorIsAskedOnceForEachRequestOfACall(t *testing.T) {
	t.Parallel()
	errDown := errors.New("the server is down")
	down := func(context.Context, []Request) ([]Decision, error) { return nil, errDown }
	requests := []Request{{Key: "a", Tokens: 1}, {Key: "b", Tokens: 2}, {Key: "a", Tokens: 3}}

	decisions, err := withFallback(FailOpen, down)(t.Context(), requests)
	if err != nil || len(decisions) != len(requests) {
		t.Fatal(decisions, err)
	}
	for i, d := range decisions {
		if want := (Decision{Allowed: true, Granted: requests[i].Tokens}); d != want {
			t.Errorf("%d: %+v, want %+v", i, d, want)
		}
	}

	// One that stays an error makes the whole call one.
	var asked int
	decisions, err = withFallback(func(_ context.Context, r Request, err error) (Decision, error) {
		asked++
		if r.Key == "b" {
			return Decision{}, err
		}
		return Decision{}, nil
	}, down)(t.Context(), requests)
	if decisions != nil || !errors.Is(err, errDown) || asked != 2 {
		t.Errorf("%v, %v after %d", decisions, err, asked)
	}
}
