// Command login has a login that cannot be guessed: wrong passwords are counted by name and by address,
// and a name that goes on after that is blocked, longer each time. Right ones cost nothing.
//
//	DATABASE_URL=postgres://localhost/test go run ./examples/login
//	curl -i -d 'name=ann&password=wrong' localhost:8080/login
package main

import (
	"cmp"
	"context"
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
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	check(migrations.Up(ctx, pool))
	names, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name: "login/name", Limit: pglimit.PerHour(5),
		Block: pglimit.Block{After: 5, Within: time.Hour, For: 15 * time.Minute, Max: 24 * time.Hour, Forget: 24 * time.Hour},
	})
	check(err)
	addresses, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "login/address", Limit: pglimit.PerHour(50)})
	check(err)
	byName := httplimit.New(names, httplimit.Config{Key: name, Refund: httplimit.OnSuccess})
	byAddress := httplimit.New(addresses, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{}), Refund: httplimit.OnSuccess})
	http.Handle("POST /login", byAddress(byName(http.HandlerFunc(login))))
	server := &http.Server{Addr: cmp.Or(os.Getenv("ADDR"), "localhost:8080"), ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second}
	check(server.ListenAndServe())
}

// name counts by the name that is tried, whether there is such a user or not: Ann and ann are one.
func name(r *http.Request) (string, error) {
	return "name:" + strings.ToLower(strings.TrimSpace(r.PostFormValue("name"))), nil
}

func login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("password") != "right" { // yours asks the database
		http.Error(w, "wrong name or password", http.StatusUnauthorized) // a status of 400 or more is what counts
	}
}

func check(err error) {
	if err != nil {
		slog.Error("login ended", "error", err)
		os.Exit(1)
	}
}
