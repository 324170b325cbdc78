package grpclimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func TestRefund(t *testing.T) {
	t.Parallel()
	onInternal := grpclimit.OnCodes(codes.Internal, codes.DeadlineExceeded)
	for name, c := range map[string]struct {
		refund  func(context.Context, grpclimit.Call, codes.Code) bool
		ended   error
		charged bool
	}{
		"success":               {onInternal, nil, true},
		"a code":                {onInternal, status.Error(codes.Internal, ""), false},
		"another code":          {onInternal, status.Error(codes.NotFound, ""), true},
		"a wrapped code":        {onInternal, fmt.Errorf("no: %w", status.Error(codes.Internal, "")), false},
		"an error of a context": {onInternal, context.DeadlineExceeded, false},
		"any error":             {onInternal, errors.New("unknown"), true},
		"failure, success":      {grpclimit.OnFailure, nil, true},
		"failure, failure":      {grpclimit.OnFailure, errors.New("unknown"), false},
		"failure, cancelled":    {grpclimit.OnFailure, status.Error(codes.Canceled, ""), true}, // by the client, when it likes
		"failure, late":         {grpclimit.OnFailure, context.DeadlineExceeded, true},
		"success, success":      {grpclimit.OnSuccess, nil, false},
		"success, failure":      {grpclimit.OnSuccess, errors.New("unknown"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
			client := serve(t, limiter, grpclimit.Config{Key: anybody, Refund: c.refund, Cost: func(context.Context, grpclimit.Call) int64 { return 2 }},
				&service{answer: func(context.Context) error { return c.ended }})
			if ended, _ := call(t.Context(), client); (ended.Code() == codes.OK) != (c.ended == nil) {
				t.Errorf("the call ended with %v", ended)
			}
			left := int64(5)
			if c.charged {
				left = 3
			}
			wantLeft(t, limiter, "anybody", left)
		})
	}
}

// A client that leaves is why calls fail, whatever the handler returns: Send has Unavailable for a
// connection that was closed.
func TestRefundAfterTheClientHasLeft(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refund func(context.Context, grpclimit.Call, codes.Code) bool
		ended  error
		left   int64
	}{
		"asked for":     {grpclimit.OnCodes(codes.Canceled), context.Canceled, 5},
		"asked for too": {grpclimit.OnCodes(codes.Canceled), status.Error(codes.Unavailable, ""), 5},
		"another code":  {grpclimit.OnCodes(codes.Unavailable), status.Error(codes.Unavailable, ""), 4},
		"failure":       {grpclimit.OnFailure, status.Error(codes.Unavailable, ""), 4},
		"success":       {grpclimit.OnFailure, nil, 4},
		"stopped":       {grpclimit.OnSuccess, nil, 4}, // before it knew whether it would succeed
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
			limits, err := grpclimit.New(limiter, grpclimit.Config{Key: anybody, Refund: c.refund})
			must(t, err)
			ctx, leave := context.WithCancel(t.Context())
			_, err = limits.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, func(context.Context, any) (any, error) {
				leave()
				return nil, c.ended
			})
			if !errors.Is(err, c.ended) {
				t.Errorf("the call ended with %v", err)
			}
			wantLeft(t, limiter, "anybody", c.left)
		})
	}
}

// An answer with OK may say that the call failed.
func TestAHandlerSaysThatItFailed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refund func(context.Context, grpclimit.Call, codes.Code) bool
		leaves bool
		left   int64
	}{
		"success":           {grpclimit.OnSuccess, false, 4},
		"failure":           {grpclimit.OnFailure, false, 5},
		"failure, and left": {grpclimit.OnFailure, true, 4},
	} {
		limiter := newLimiter(t, pglimittest.Memory(), perHour(5))
		limits, err := grpclimit.New(limiter, grpclimit.Config{Key: anybody, Refund: c.refund})
		must(t, err)
		ctx, leave := context.WithCancel(t.Context())
		_, err = limits.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, func(ctx context.Context, _ any) (any, error) {
			grpclimit.Failed(ctx)
			if c.leaves {
				leave()
			}
			return nil, nil
		})
		leave()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantLeft(t, limiter, "anybody", c.left)
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

// givingUp is a strategy that gives back as long as its context does not end, and not for limiter "first".
type givingUp struct{ *pglimittest.Strategy }

func (g givingUp) GiveBack(ctx context.Context, session pglimit.Session, refunds []pglimit.Refund) error {
	if ctx.Err() != nil || refunds[0].Limiter == "first" {
		return errors.Join(pglimit.ErrUnavailable, ctx.Err())
	}
	return g.Strategy.GiveBack(ctx, session, refunds)
}

// A refund outlives the call's context. One that fails is logged, and stops neither the others nor the answer.
func TestEachRefundIsByItself(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	limiter, err := pglimittest.New(givingUp{pglimittest.Memory()}, pglimit.Config{Name: "api", Limit: pglimit.PerHour(1)})
	must(t, err)
	limits, err := grpclimit.New(limiter, grpclimit.Config{
		Key: anybody, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Refund: func(context.Context, grpclimit.Call, codes.Code) bool { return true },
		Requests: func(_ context.Context, _ grpclimit.Call, key string) []pglimit.Request {
			return []pglimit.Request{{Limiter: "first", Key: key}, {Key: key}}
		},
	})
	must(t, err)
	ctx, leave := context.WithCancel(t.Context())
	_, err = limits.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, func(context.Context, any) (any, error) {
		leave()
		return nil, nil
	})
	if text := log.String(); err != nil || strings.Count(text, "tokens not given back") != 1 || !strings.Contains(text, emptyCall) || strings.Contains(text, "canceled") {
		t.Errorf("%v, and the log says %s", err, text)
	}
	wantLeft(t, limiter, "anybody", 1)
}
