package grpclimit_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
)

func Example() {
	ctx := context.Background()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{ // pglimit.New(pool, strategies.TokenBucket{}, …)
		Name:  "api",
		Limit: pglimit.PerMinute(2),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	limits, err := grpclimit.New(limiter, grpclimit.Config{
		Key:  grpclimit.FirstOf(grpclimit.Subject("user", userOf), grpclimit.PeerIP),
		Skip: grpclimit.Methods("grpc.health.v1.Health"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limits.Unary), // behind the one that authenticates
		grpc.ChainStreamInterceptor(limits.Stream),
	)
	defer server.Stop()
	grpc_testing.RegisterTestServiceServer(server, new(service)) // your service

	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(listener) //nolint:errcheck // it ends with the example

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close() }()
	client := grpc_testing.NewTestServiceClient(conn)
	for range 3 {
		_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
		denied := status.Convert(err)
		fmt.Printf("%v %q\n", denied.Code(), denied.Message())
		for _, detail := range denied.Details() {
			if quota, is := detail.(*errdetails.QuotaFailure); is {
				fmt.Println(quota.Violations[0].QuotaId, quota.Violations[0].Description)
			}
		}
	}
	// Output:
	// OK ""
	// OK ""
	// ResourceExhausted "rate limit exceeded: try again in 30s"
	// api the limit is 2/1m
}

func ExampleClientInterceptor() {
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{Name: "outbound", Limit: pglimit.PerSecond(10)})
	if err != nil {
		fmt.Println(err)
		return
	}
	target := "dns:///api.example.com"
	turns := &grpclimit.ClientInterceptor{Limiter: limiter}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials.NewTLS(nil)),
		grpc.WithChainUnaryInterceptor(turns.Unary), grpc.WithChainStreamInterceptor(turns.Stream))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close() }()
	// Each call of a client on conn waits for its turn.
}

func ExampleConfig() {
	price := map[string]int64{"/shop.Orders/List": 1, "/shop.Orders/Export": 20}
	planOf := func(ctx context.Context) pglimit.Limit { // of the user in the context
		if userOf(ctx) == "42" {
			return pglimit.PerMinute(600)
		}
		return pglimit.PerMinute(60)
	}
	config := grpclimit.Config{
		Key:    grpclimit.Subject("user", userOf),
		Cost:   func(_ context.Context, call grpclimit.Call) int64 { return price[call.Method] },
		Limit:  func(ctx context.Context, _ grpclimit.Call) pglimit.Limit { return planOf(ctx) },
		Refund: grpclimit.OnCodes(codes.Internal, codes.Unavailable),
	}
	ctx := context.WithValue(context.Background(), userKey{}, "42")
	fmt.Println(config.Key(ctx, grpclimit.Call{}))
	fmt.Println(config.Limit(ctx, grpclimit.Call{}), config.Cost(ctx, grpclimit.Call{Method: "/shop.Orders/Export"}))
	// Output:
	// user:42 <nil>
	// 600/1m 20
}
