package grpclimit_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// retries by itself up to four times: after a minute, if the server does not push back.
var retries = grpc.WithDefaultServiceConfig(`{"methodConfig": [{
	"name": [{"service": "grpc.testing.TestService"}],
	"retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "60s", "maxBackoff": "60s", "backoffMultiplier": 1,
		"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
	}
}]}`)

func TestClientRetriesWhenItIsTold(t *testing.T) {
	t.Parallel()
	strategy, s := &forgiving{Strategy: pglimittest.Memory()}, new(service)
	client := serve(t, newLimiter(t, strategy, pglimit.Every(60*time.Millisecond)), grpclimit.Config{Key: anybody}, s, retries)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	began := time.Now()
	for range 3 {
		if ended, _ := call(ctx, client); ended.Code() != codes.OK {
			t.Errorf("the call ended with %v", ended)
		}
	}
	if took, least := time.Since(began), time.Duration(strategy.waited.Load()); took < least || least != 120*time.Millisecond {
		t.Errorf("the client waited %v of %v, which should be 120ms", took, least)
	}
	if s.calls.Load() != 3 || strategy.denials.Load() != 2 {
		t.Errorf("%d calls of 3 reached the handler, %d attempts of 2 were denied", s.calls.Load(), strategy.denials.Load())
	}
}

// A client that waited for tokens that come too late would end with DEADLINE_EXCEEDED, or not
// within the time of a test, without knowing why.
func TestClientDoesNotRetryInVain(t *testing.T) {
	t.Parallel()
	const within = time.Minute
	for name, c := range map[string]struct {
		limit       pglimit.Limit
		maxPushback time.Duration
		deadline    time.Duration
	}{
		"later than the default":   {pglimit.Every(10*time.Second + time.Millisecond), 0, within},
		"later than MaxPushback":   {pglimit.Every(2 * time.Second), time.Second, within},
		"later than the deadline":  {pglimit.Every(within + time.Second), time.Hour, within},
		"no retries":               {pglimit.Every(time.Millisecond), -1, within},
		"later, and no deadline":   {pglimit.Every(time.Hour), 0, 0},
		"much later, no deadline ": {pglimit.Every(100 * 365 * 24 * time.Hour), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strategy, ctx := &forgiving{Strategy: pglimittest.Memory()}, t.Context()
			client := serve(t, newLimiter(t, strategy, c.limit), grpclimit.Config{Key: anybody, MaxPushback: c.maxPushback}, new(service), retries)
			if c.deadline > 0 {
				limited, cancel := context.WithTimeout(ctx, c.deadline)
				defer cancel()
				ctx = limited
			}
			if granted, _ := call(ctx, client); granted.Code() != codes.OK {
				t.Fatalf("the call ended with %v", granted)
			}
			denied, trailer := call(ctx, client)
			if denied.Code() != codes.ResourceExhausted || len(trailer) != 1 || trailer[0] != "-1" || strategy.denials.Load() != 1 {
				t.Errorf("the call ended with %v, %s %q, after %d denials", denied, pushback, trailer, strategy.denials.Load())
			}
			if retry, _ := details(t, denied); retry.GetRetryDelay().AsDuration() != c.limit.Period {
				t.Errorf("RetryInfo is %v, not %v", retry, c.limit.Period)
			}
		})
	}
}

// A whole millisecond is told as it is, and of the longest time that is told nothing is left out.
func TestPushbackAtItsBounds(t *testing.T) {
	t.Parallel()
	for every, want := range map[time.Duration]string{
		1:                    "1",
		time.Millisecond:     "1",
		time.Millisecond + 1: "2",
		10 * time.Second:     "10000",
		10*time.Second + 1:   "-1",
	} {
		client := serve(t, newLimiter(t, pglimittest.Memory(), pglimit.Every(every)), grpclimit.Config{Key: anybody}, new(service))
		wantCode(t, client, codes.OK)
		denied, trailer := call(t.Context(), client)
		if retry, _ := details(t, denied); len(trailer) != 1 || trailer[0] != want || want != "-1" && trailer[0] != fmt.Sprint(retry.GetRetryDelay().AsDuration().Milliseconds()) {
			t.Errorf("%v: %q, %v, want %s", every, trailer, retry, want)
		}
	}
}

// A fallback says when to come back, too.
func TestClientRetriesWhenTheFallbackSays(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	memory.Fail(pglimit.ErrUnavailable)
	limiter, err := pglimittest.New(memory, pglimit.Config{
		Name: "api", Limit: perHour(1),
		OnError: func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			memory.Fail(nil)
			return pglimit.Decision{RetryAfter: time.Millisecond}, nil
		},
	})
	must(t, err)
	client := serve(t, limiter, grpclimit.Config{Key: anybody, Logger: slog.New(slog.DiscardHandler)}, new(service), retries)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if ended, _ := call(ctx, client); ended.Code() != codes.OK {
		t.Errorf("the call ended with %v", ended)
	}
}
