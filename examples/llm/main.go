// Command llm is a gateway to a language model. A request takes an estimate of its tokens from its user and its
// organisation, both or none, and pays the real cost when the model has answered.
//
//	DATABASE_URL=postgres://localhost/test go run ./examples/llm
//	curl -i -H 'X-User: ann' -H 'X-Org: acme' -d 'prompt=Why is the sky blue?' localhost:8080/chat
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(context.Background(), pool))
	users, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "user", Limit: pglimit.PerHour(1000)})
	check(err)
	http.HandleFunc("POST /chat", func(w http.ResponseWriter, r *http.Request) {
		prompt := r.FormValue("prompt")
		estimate := int64(len(prompt)/4 + 500) // the longest answer is 500
		group, err := users.DoAll(r.Context(), // the authenticated user and organisation: here a gateway sets two fields
			pglimit.Request{Key: r.Header.Get("X-User"), Tokens: estimate},
			pglimit.Request{Limiter: "org", Key: r.Header.Get("X-Org"), Tokens: estimate, Limit: pglimit.PerHour(1500)})
		switch {
		case err != nil:
			httplimit.WriteFailed(w, r, err) // 400 if it could never be granted
		case !group.Allowed:
			httplimit.Deny(w, r, group.Denied) // 429, with Retry-After and the limit that denied
		default:
			// Yours asks the model, with r.Context(). A failure costs 0. A client that disconnects pays too.
			answer, cost := prompt, int64(2*len(strings.Fields(prompt)))
			charged, err := users.Settle(r.Context(), group.Decisions[0], cost, group.Decisions[1:]...)
			slog.Info("settled", "key", r.Header.Get("X-User"), "charged", charged.Granted, "error", err)
			_, _ = fmt.Fprintln(w, answer)
		}
	})
	check((&http.Server{Addr: cmp.Or(os.Getenv("ADDR"), "localhost:8080"), ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second}).ListenAndServe())
}

func check(err error) {
	if err != nil {
		slog.Error("llm ended", "error", err)
		os.Exit(1)
	}
}
