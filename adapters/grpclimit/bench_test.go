package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

// A denial from memory, as under attack: what the interceptor adds to a call.
func BenchmarkDenied(b *testing.B) {
	memory := pglimittest.MemoryOn(time.Now)
	limiter, err := pglimit.New(memory.Pool(), memory, pglimit.Config{Name: "api", Limit: perHour(1)})
	if err != nil {
		b.Fatal(err)
	}
	defer limiter.Close(context.Background()) //nolint:errcheck // it has nothing to give back
	limits, err := grpclimit.New(limiter, grpclimit.Config{Key: anybody})
	if err != nil {
		b.Fatal(err)
	}
	info := &grpc.UnaryServerInfo{FullMethod: emptyCall}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	if _, err := limits.Unary(b.Context(), nil, info, handler); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := limits.Unary(b.Context(), nil, info, handler); status.Code(err) != codes.ResourceExhausted {
			b.Fatal(err)
		}
	}
}
