// Command grpc is a gRPC server that allows each client ten calls a minute per method. It is its own module, like the
// adapter, so that HTTP services do not depend on gRPC.
//
//	DATABASE_URL=postgres://localhost/test go run .
package main

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(ctx, pool))
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "grpc", Limit: pglimit.PerMinute(10)})
	check(err)
	limits, err := grpclimit.New(limiter, grpclimit.Config{Key: grpclimit.Join(grpclimit.PeerIP, grpclimit.Method)})
	check(err)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(limits.Unary), // behind the one that authenticates, with grpclimit.Subject
		grpc.ChainStreamInterceptor(limits.Stream),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer()) // your services
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	check(err)
	check(server.Serve(listener))
}

func check(err error) {
	if err != nil {
		slog.Error("grpc ended", "error", err)
		os.Exit(1)
	}
}
