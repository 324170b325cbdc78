package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A call that fails because its client has left has that code, whatever the handler returns: Send has Unavailable for a
// connection that was closed. And an answer with OK may say that the call failed.
func TestRefund(t *testing.T) {
	t.Parallel()
	onInternal := grpclimit.OnCodes(codes.Internal, codes.DeadlineExceeded)
	onCanceled, onUnavailable := grpclimit.OnCodes(codes.Canceled), grpclimit.OnCodes(codes.Unavailable)
	unavailable := status.Error(codes.Unavailable, "")
	for name, c := range map[string]struct {
		refund         func(context.Context, grpclimit.Call, codes.Code) bool
		ended          error
		failed, leaves bool
		charged        bool
	}{
		"success":               {refund: onInternal, charged: true},
		"a code":                {refund: onInternal, ended: status.Error(codes.Internal, "")},
		"another code":          {refund: onInternal, ended: status.Error(codes.NotFound, ""), charged: true},
		"a wrapped code":        {refund: onInternal, ended: fmt.Errorf("no: %w", status.Error(codes.Internal, ""))},
		"an error of a context": {refund: onInternal, ended: context.DeadlineExceeded},
		"any error":             {refund: onInternal, ended: errors.New("unknown"), charged: true},
		"failure, success":      {refund: grpclimit.OnFailure, charged: true},
		"failure, failure":      {refund: grpclimit.OnFailure, ended: errors.New("unknown")},
		"failure, cancelled":    {refund: grpclimit.OnFailure, ended: status.Error(codes.Canceled, ""), charged: true}, // by the client, when it likes
		"failure, late":         {refund: grpclimit.OnFailure, ended: context.DeadlineExceeded, charged: true},
		"success, success":      {refund: grpclimit.OnSuccess},
		"success, failure":      {refund: grpclimit.OnSuccess, ended: errors.New("unknown"), charged: true},

		"left, asked for":       {refund: onCanceled, ended: context.Canceled, leaves: true},
		"left, asked for too":   {refund: onCanceled, ended: unavailable, leaves: true},
		"left, another code":    {refund: onUnavailable, ended: unavailable, leaves: true, charged: true},
		"left, failure":         {refund: grpclimit.OnFailure, ended: unavailable, leaves: true, charged: true},
		"left, failure success": {refund: grpclimit.OnFailure, leaves: true, charged: true},
		"left, stopped":         {refund: grpclimit.OnSuccess, leaves: true, charged: true}, // before it knew whether it would succeed

		"says so, success":       {refund: grpclimit.OnSuccess, failed: true, charged: true},
		"says so, failure":       {refund: grpclimit.OnFailure, failed: true},
		"says so, left, failure": {refund: grpclimit.OnFailure, failed: true, leaves: true, charged: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
			limits, err := grpclimit.New(limiter, grpclimit.Config{
				Key: anybody, Refund: c.refund, Cost: func(context.Context, grpclimit.Call) int64 { return 2 },
			})
			must(t, err)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			_, err = limits.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, func(ctx context.Context, _ any) (any, error) {
				if c.failed {
					grpclimit.Failed(ctx)
				}
				if c.leaves {
					leave()
				}
				return nil, c.ended
			})
			if !errors.Is(err, c.ended) {
				t.Errorf("the call ended with %v", err)
			}
			left := int64(5)
			if c.charged {
				left = 3
			}
			wantLeft(t, limiter, "anybody", left)
		})
	}
}

func TestRefundAfterAPanic(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
	limits, err := grpclimit.New(limiter, grpclimit.Config{Key: anybody, Refund: grpclimit.OnCodes(codes.Internal)})
	must(t, err)
	defer func() {
		if what := recover(); what != "a fault" {
			t.Errorf("the panic is %v", what)
		}
		wantLeft(t, limiter, "anybody", 5)
	}()
	_, _ = limits.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, func(context.Context, any) (any, error) { panic("a fault") })
}
