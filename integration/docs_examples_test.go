package integration

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"github.com/pglimit/ratelimit/adapters/adminlimit"
	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/limits"
	"github.com/pglimit/ratelimit/migrations"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/semaphore"
	"github.com/pglimit/ratelimit/strategies"
)

// The Go of the pages in docs/, word for word: TestGoOfTheDocs looks for it here, and calls these.

func docsOwnPool(ctx context.Context, use func(*pgxpool.Pool) error) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = 5
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	return use(pool)
}

func docsAdmin(
	pool *pgxpool.Pool, top *pglimit.Top, mux *http.ServeMux, isOperator func(*http.Request) bool, userOf func(*http.Request) string,
) {
	admin := adminlimit.New(pool, adminlimit.Config{
		Top: top, // with your secret, if keys are hashed
		May: func(r *http.Request, limiter string, change bool) bool { return isOperator(r) },
		Who: func(r *http.Request) string { return userOf(r) },
	})
	mux.Handle("/admin/", http.StripPrefix("/admin", admin))
}

func docsBehindPgBouncer(ctx context.Context, use func(*pgxpool.Pool) error) error {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // or default_query_exec_mode=exec in the URL
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	return use(pool)
}

func docsCalendarWindow(ctx context.Context, pool *pgxpool.Pool) error {
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name: "api", Limit: pglimit.PerMonth(10_000).In("Europe/Berlin").From(15),
	})
	if err != nil {
		return err
	}
	decision, err := limiter.Allow(ctx, "customer:42")
	if err == nil && (!decision.Allowed || decision.ResetAfter > 31*24*time.Hour) {
		err = fmt.Errorf("%+v", decision)
	}
	return err
}

func docsMigrateInTheBackground(ctx context.Context, pool *pgxpool.Pool) {
	go func() {
		if err := migrations.Up(ctx, pool, migrations.WaitForServer()); err != nil {
			slog.Error("rate limits are not migrated", "error", err)
		}
	}()
}

func docsReadLimits(pool *pgxpool.Pool) (*pglimit.Limiter, error) {
	rules := pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Logger: slog.Default()}) // one for all Limiters of the process
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerMinute(100), Limits: rules})
	return limiter, err
}

func docsSetLimit(ctx context.Context, pool *pgxpool.Pool) (*limits.Rule, error) {
	table := limits.New(pool)
	replaced, err := table.Set(ctx, limits.Rule{Limiter: "api", Key: "user:42", Limit: "500/1m", Note: "ticket 7", By: "ann"})
	return replaced, err
}

//nolint:errcheck // the page shows the habit
func docsSemaphore(ctx context.Context, pool *pgxpool.Pool, importFor func(context.Context, int64) error) error {
	jobs, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 5})
	if err != nil {
		return err
	}
	permit, err := jobs.Acquire(ctx, "tenant:42") // waits in line for one of five places
	if err != nil {
		return err
	}
	defer permit.Release(ctx)
	return importFor(permit.Context(), permit.Token)
}

func docsSemaphoreTable(pool *pgxpool.Pool) (*semaphore.Semaphore, error) {
	jobs, err := semaphore.New(pool, semaphore.Config{Name: "imports", Places: 5, FromTable: true})
	return jobs, err
}

func docsSemaphoreIf(ctx context.Context, jobs *semaphore.Semaphore, limiter *pglimit.Limiter) error {
	var group pglimit.Group
	permit, err := jobs.TryAcquireIf(ctx, "tenant:42", 1, func(ctx context.Context, tx pglimit.Session) (err error) {
		group, err = limiter.On(tx).DoAll(ctx, pglimit.Request{Key: "user:7", Tokens: 1}, pglimit.Request{Key: "tenant:42", Tokens: 1})
		if err == nil && !group.Allowed {
			err = errDenied // come back after group.RetryAfter
		}
		return err
	})
	if errors.Is(err, semaphore.ErrFull) {
		return err // no place: the limits were not asked
	}
	if err != nil {
		return err
	}
	return errors.Join(permit.Err(), permit.Release(ctx))
}

func docsMoving(ctx context.Context, limiter *pglimit.Limiter) error {
	res, err := limiter.Do(ctx, pglimit.Request{Key: "project:123", Limit: pglimit.PerSecond(10), Tokens: 1})
	if err != nil {
		return err
	}
	fmt.Println("allowed", res.Allowed, "remaining", res.Remaining)
	return nil
}

// docsHTTPRate adds the middleware to a router, such as chi's.
func docsHTTPRate(pool *pgxpool.Pool, r interface {
	Use(middlewares ...func(http.Handler) http.Handler)
}) (*pglimit.Limiter, error) {
	// instead of r.Use(httprate.LimitByIP(100, time.Minute))
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerMinute(100)})
	r.Use(httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{}), Headers: httplimit.Legacy}))
	return limiter, err
}

func docsStop(pool *pgxpool.Pool) error {
	server := &http.Server{ReadHeaderTimeout: time.Second}
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10)})
	if err != nil {
		return err
	}
	cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{})
	if err != nil {
		return err
	}
	if err := errors.Join(docsMoving(context.Background(), limiter), cleaner.Start(context.Background())); err != nil {
		return err
	}
	return func() error {
		stopping, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		err := errors.Join(
			server.Shutdown(stopping), // no new requests; those under way end
			cleaner.Stop(stopping),    // the batch under way is rolled back
			limiter.Close(stopping),
		)
		pool.Close()
		return err
	}()
}

func docsKeys(people ...string) (keys []string) {
	key := func(secret []byte, person string) string {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(norm.NFC.String(cases.Fold().String(strings.TrimSpace(person)))))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	for _, person := range people {
		keys = append(keys, key([]byte("16 random bytes."), person))
	}
	return keys
}

func docsClient(pool *pgxpool.Pool) (*http.Client, error) {
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{
		Name: "outbound", Limit: pglimit.PerSecond(10).WithBurst(1), // evenly, 100 ms apart
	})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Retry: true}, Timeout: 30 * time.Second}, nil
}

func docsClientOfTwoRates(second, hour *pglimit.Limiter) *http.Client {
	perSecond := &httplimit.Transport{Limiter: second, Retry: true}
	return &http.Client{Transport: &httplimit.Transport{Limiter: hour, Base: perSecond}, Timeout: time.Minute}
}

func docsClientByToken(transport *httplimit.Transport) {
	transport.Key = httplimit.Hashed(httplimit.Header("Authorization"), nil) // a hash, because keys are stored
}

func docsPause(ctx context.Context, limiter *pglimit.Limiter, call func(context.Context) (time.Duration, error)) error {
	if _, err := limiter.Wait(ctx, "partner"); err != nil {
		return err
	}
	retryAfter, err := call(ctx)
	if retryAfter > 0 {
		err = errors.Join(err, limiter.Pause(ctx, "partner", time.Now().Add(retryAfter)))
	}
	return err
}

func docsServer(limiters map[string]*pglimit.Limiter, servers []string, key string) *pglimit.Limiter {
	weight := func(server string) []byte {
		sum := sha256.Sum256([]byte(server + " " + key))
		return sum[:]
	}
	server := slices.MaxFunc(servers, func(a, b string) int { return bytes.Compare(weight(a), weight(b)) })
	return limiters[server]
}

// Keys are spread evenly, and one more server takes over its share and moves no other key.
func TestKeysOverSeveralServers(t *testing.T) {
	t.Parallel()
	limiters, servers := map[string]*pglimit.Limiter{}, []string{"a", "b", "c", "d"}
	for _, server := range servers {
		limiters[server] = new(pglimit.Limiter)
	}
	had := map[*pglimit.Limiter]int{}
	for i := range 4000 {
		key := fmt.Sprint("user:", i)
		of := docsServer(limiters, servers, key)
		had[of]++
		if before := docsServer(limiters, servers[:3], key); of != before && of != limiters["d"] {
			t.Errorf("%s has moved", key)
		}
	}
	for server, limiter := range limiters {
		if n := had[limiter]; n < 850 || n > 1150 {
			t.Errorf("%s has %d of 4000 keys", server, n)
		}
	}
}

func docsNodes(coordinator *pgxpool.Pool, limit pglimit.Limit) (*pglimit.Limiter, *pglimit.Nodes, error) {
	nodes := pglimit.NodesFrom(coordinator, nil) // or a function that opens the pool of a host and port
	limiter, err := pglimit.New(coordinator, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: limit, Nodes: nodes})
	return limiter, nodes, err
}

func docsTop(ctx context.Context, pool *pgxpool.Pool) ([]pglimit.TopKey, error) {
	top := pglimit.TopFrom(pool, pglimit.TopConfig{})
	limiter, err := pglimit.New(pool, strategies.TokenBucket{}, pglimit.Config{Name: "api", Limit: pglimit.PerSecond(10), Top: top})
	if err != nil {
		return nil, err
	}
	keys, err := limiter.Top(ctx, pglimit.TopQuery{Minutes: 10}) // who was denied most
	return keys, errors.Join(err, limiter.Close(ctx))
}
