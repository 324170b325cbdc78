// Command mcp is an MCP server that lets each user call its tools ten times a minute, through whatever process. A
// model is told when to try again. Its own module: DATABASE_URL=postgres://localhost/test go run .
package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func main() {
	ctx := context.Background()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	must(0, migrations.Up(ctx, pool))
	limiter := must(pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "tools", Limit: pglimit.PerMinute(10)}))
	server := mcp.NewServer(&mcp.Implementation{Name: "clock"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "now"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, time.Now().Format(time.TimeOnly), nil
	})
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method != "tools/call" {
				return next(ctx, method, r)
			}
			d, err := limiter.Allow(ctx, r.GetExtra().TokenInfo.UserID)
			if err == nil && !d.Allowed {
				text := fmt.Sprintf("Too many calls. Try again in %.0f seconds.", math.Ceil(d.RetryAfter.Seconds()))
				return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
			} else if err != nil {
				return nil, err
			}
			return next(ctx, method, r)
		}
	})
	user := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) { // check the token here
		return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	web := http.Server{Addr: cmp.Or(os.Getenv("ADDR"), "localhost:8080"), Handler: auth.RequireBearerToken(user, nil)(handler), ReadTimeout: time.Minute, IdleTimeout: time.Minute}
	must(0, web.ListenAndServe())
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err) //nolint:forbidigo // an example ends so
	}
	return value
}
