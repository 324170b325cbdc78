package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func TestStreamIsChargedWhenItOpens(t *testing.T) {
	t.Parallel()
	limiter, s := newLimiter(t, pglimittest.Memory(), perHour(2)), new(service)
	client := serve(t, limiter, grpclimit.Config{Key: anybody}, s)
	if granted, _ := send(t, client, 10); granted.Code() != codes.OK {
		t.Errorf("the stream ended with %v", granted)
	}
	wantLeft(t, limiter, "anybody", 1)
	wantCode(t, client, codes.OK) // calls of both kinds share the limit
	denied, trailer := send(t, client, 10)
	retry, quota := details(t, denied)
	if denied.Code() != codes.ResourceExhausted || retry == nil || quota == nil || len(trailer[pushback]) != 1 {
		t.Errorf("the stream ended with %v, %v, %v, %v", denied, retry, quota, trailer)
	}
	if s.calls.Load() != 2 || s.messages.Load() != 10 {
		t.Errorf("%d calls, %d messages reached the handler, not 2 and 10", s.calls.Load(), s.messages.Load())
	}
}

func TestPerMessage(t *testing.T) {
	t.Parallel()
	limiter, s := newLimiter(t, pglimittest.Memory(), pglimit.Every(time.Millisecond).WithBurst(8)), new(service)
	client := serve(t, limiter, grpclimit.Config{Key: anybody, PerMessage: true}, s, retries)
	if granted, _ := send(t, client, 3); granted.Code() != codes.OK {
		t.Errorf("the stream ended with %v", granted)
	}
	wantLeft(t, limiter, "anybody", 4)

	// Of a stream that the server sends on, the request is not a message of its own.
	stream, err := client.StreamingOutputCall(t.Context(), &grpc_testing.StreamingOutputCallRequest{})
	must(t, err)
	if _, err := stream.Recv(); err != nil {
		t.Error(err)
	}
	wantLeft(t, limiter, "anybody", 3)

	denied, trailer := send(t, client, 5)
	retry, quota := details(t, denied)
	if denied.Code() != codes.ResourceExhausted || retry == nil || quota == nil {
		t.Errorf("the stream ended with %v, %v, %v", denied, retry, quota)
	}
	if got := trailer[pushback]; len(got) != 1 || got[0] != "-1" { // a retry would pay for all messages again
		t.Errorf("%s is %q", pushback, got)
	}
	if s.messages.Load() != 3+2 {
		t.Errorf("%d messages reached the handler, not 5", s.messages.Load())
	}
}

// The opening comes back, and not the messages, each of which has a cost.
func TestRefundOfAStream(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, pglimittest.Memory(), perHour(8))
	s := &service{answer: func(context.Context) error { return status.Error(codes.Internal, "a fault") }}
	cost := func(_ context.Context, call grpclimit.Call) int64 {
		if _, is := call.Message.(*grpc_testing.StreamingInputCallRequest); is {
			return 2
		}
		return 1
	}
	client := serve(t, limiter, grpclimit.Config{Key: anybody, Cost: cost, PerMessage: true, Refund: grpclimit.OnFailure}, s)
	if ended, _ := send(t, client, 3); ended.Code() != codes.Internal {
		t.Errorf("the stream ended with %v", ended)
	}
	wantLeft(t, limiter, "anybody", 2) // the messages stay charged
}
