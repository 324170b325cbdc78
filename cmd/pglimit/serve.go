package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/ratelimit/adapters/promlimit"
	"github.com/pglimit/ratelimit/cleanup"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/serve"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/strategies"
)

const serveLong = `Answer HTTP requests, for programs in any language, until Ctrl-C or SIGTERM. Any
number of instances may run: Postgres decides, so their limits are the same.

  POST /v1/allow    {"limiter":"api","key":"user:42"}: take a token, if there
  POST /v1/peek     the same body: look, and take nothing
  POST /v1/reset    the same body: fill the bucket
  POST /v1/refund   {"decision":{...},"tokens":1}: give back what was granted
  POST /v1/settle   {"decision":{...},"tokens":9}: charge what it really cost
  GET  /v1/top      the keys that are limited most: ?limiter=api&minutes=10
  GET  /v1/gateway  may this request pass? For gateways, with --gateway-key
  GET  /admin/      a page for operators, with --admin
  GET  /healthz, /readyz, and /metrics for Prometheus

The limits are those of the table pglimit.limits, which "pglimit limits" changes
while it runs. A YAML file (--config) names limiters with settings, and with a
limit for keys that have none in the table:

  limiters:
    api:   {limit: 10/s burst 20}
    login: {limit: 5/1m, on_error: closed}

Anybody who can reach the address can take from and reset any key. So it listens
on this machine only, unless --listen says otherwise. With --token-file,
requests below /v1 need "Authorization: Bearer TOKEN". Each line of the file is
a token, after which its rights (decide, read, administer) and limiters may
follow:

  0123456789abcdef0123456789abcdef decide,read limiters=api,login

It does not speak TLS.

At SIGHUP it reads both files again. The exit code is 0, or 2 if a request got
no answer or leases could not be returned. docs/serve.md has the rest: all
requests and answers, the file, the tokens, and how it starts and stops.`

type serveFlags struct {
	config    string
	listen    string
	tokenFile string
	hashFile  string
	gateway   serve.Gateway
	conns     int32
	noCleanup bool
	admin     bool
	stop      serve.Stop
}

func newServeCommand(a *app) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [--config FILE]",
		Short: "Answer over HTTP, for programs in any language",
		Long:  serveLong,
		Example: lines(
			"pglimit limits set api --limit \"10/s burst 20\" --note default",
			"pglimit serve",
			"curl --json '{\"limiter\":\"api\",\"key\":\"user:42\"}' http://127.0.0.1:8080/v1/allow",
			"",
			"# in a container, for others",
			"pglimit serve --config limits.yaml --token-file /run/token --output json",
		),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "YAML `FILE` that names the limiters")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8080",
		"`ADDRESS` to listen on: host:port, or :port to accept connections from other machines")
	flags.StringVar(&f.tokenFile, "token-file", "",
		"`FILE` with a token of at least 16 characters per line, and what it may do: requests below /v1 must bring one of "+
			"them")
	flags.StringVar(&f.hashFile, "hash-key-file", "", "`FILE` with a secret of at least 16 characters: with it, the keys "+
		"that are limited most are stored as hashes, for \"pglimit top\" and /v1/top")
	flags.StringVar(&f.gateway.Limiter, "gateway-limiter", "", "`HEADER` in which a gateway names the limiter when "+
		"it asks /v1/gateway; its clients must not be able to set it")
	flags.StringVar(&f.gateway.Key, "gateway-key", "",
		"`HEADER` in which a gateway names the key; its clients must not be able to set it")
	flags.BoolVar(&f.admin, "admin", false, "serve a page for operators at /admin/: who is limited, the rules and their "+
		"history; the password is a token")
	flags.Int32Var(&f.conns, "conns", 10,
		"most connections to PostgreSQL, a `NUMBER`, unless the database's URL has pool_max_conns")
	flags.BoolVar(&f.noCleanup, "no-cleanup", false, "leave it to others to remove rows that are no longer needed")
	flags.DurationVar(&f.stop.Drain, "drain", 2*time.Second, "`TIME` to go on when told to stop, with /readyz failing")
	flags.DurationVar(&f.stop.Grace, "grace", 10*time.Second, "longest `TIME` for the requests under way after that")
	complete(cmd, "config", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	complete(cmd, "token-file", anyFile)
	complete(cmd, "hash-key-file", anyFile)
	return cmd
}

func (a *app) serve(cmd *cobra.Command, f *serveFlags) error {
	limits, err := f.readLimits()
	if err != nil {
		return err
	}
	switch {
	case f.conns < 2:
		return fmt.Errorf("--conns is %d: it must be at least 2", f.conns)
	case (f.gateway.Limiter == "") != (f.gateway.Key == "") || f.gateway.Key != "" &&
		strings.EqualFold(f.gateway.Limiter, f.gateway.Key):
		return errors.New("--gateway-limiter and --gateway-key go together: name two header fields that " +
			"the gateway sets")
	case f.stop.Drain < 0:
		return fmt.Errorf("--drain is %v: it must not be negative", f.stop.Drain)
	case f.stop.Grace < 0:
		return fmt.Errorf("--grace is %v: it must not be negative", f.stop.Grace)
	}
	tokens, err := f.readTokens()
	if err != nil {
		return err
	}
	hashKey, err := readHashKey(f.hashFile)
	if err != nil {
		return err
	}
	config, err := a.serveConfig(f.conns)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return a.serveOn(ctx, pool, limits, tokens, hashKey, f)
}

// serveOn answers until ctx ends. Then nothing uses the pool any more.
func (a *app) serveOn(ctx context.Context, pool *pgxpool.Pool, limits []serve.Limit, tokens []serve.Token,
	hashKey []byte, f *serveFlags) (err error) {
	log := a.logger(0)
	listener, err := listen(ctx, "--listen", f.listen)
	if err != nil {
		return err
	}
	address, isTCP := listener.Addr().(*net.TCPAddr)
	open := isTCP && !address.IP.IsLoopback() && len(tokens) == 0
	var admin *pgxpool.Pool
	if f.admin {
		if admin = pool; open {
			return errors.Join(fmt.Errorf("--admin on %s needs --token-file: who reaches the page may change every limit "+
				"(or listen on this machine only: --listen 127.0.0.1:8080)", address), listener.Close())
		}
	}
	server, err := serve.New(serve.Config{
		Limits: limits, Rules: pglimit.LimitsFrom(pool, pglimit.LimitsConfig{Logger: log}),
		Pool: pool, Database: promlimit.NewDatabase(pool, log), Tokens: tokens, Gateway: f.gateway, Logger: log, Admin: admin,
		Top: pglimit.TopFrom(pool, pglimit.TopConfig{HashKeys: hashKey, Logger: log}),
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if f.admin {
		log.Info("pglimit serve: the page for operators", "url", fmt.Sprintf("http://%s/admin/", listener.Addr()))
	}
	if open {
		log.Warn("pglimit serve: everybody who reaches this address may take, and reset keys: use --token-file, or "+
			"let a firewall see to it", "listen", address.String())
	}
	if !f.noCleanup {
		cleaner, err := cleanup.New(pool, strategies.All(), cleanup.Config{Logger: log})
		if err != nil {
			return err
		}
		if err := cleaner.Start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cleaner.Stop(context.WithoutCancel(ctx))) }()
	}
	defer f.reloadAtHUP(server, log)()
	return server.Run(ctx, listener, f.stop)
}

// reloadAtHUP reads the files again at each SIGHUP, until stop is called. Bad ones change nothing.
func (f *serveFlags) reloadAtHUP(server *serve.Server, log *slog.Logger) (stop func()) {
	signal.Reset(syscall.SIGHUP) // to other commands it says that the terminal was closed
	hups := make(chan os.Signal, 1)
	signal.Notify(hups, syscall.SIGHUP)
	go func() {
		for range hups {
			limits, err := f.readLimits()
			var tokens []serve.Token
			if err == nil {
				tokens, err = f.readTokens()
			}
			if err == nil {
				err = server.Reload(limits, tokens)
			}
			if err != nil {
				log.Error("pglimit serve: SIGHUP: nothing is changed", "error", err)
				continue
			}
			log.Info("pglimit serve: SIGHUP: the files are read again", "limiters", len(limits))
		}
	}()
	return func() {
		signal.Stop(hups)
		close(hups)
	}
}

func (f *serveFlags) readLimits() (limits []serve.Limit, err error) {
	if f.config == "" {
		return nil, nil
	}
	if limits, err = serve.ReadFile(f.config); err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return limits, nil
}

func (f *serveFlags) readTokens() (tokens []serve.Token, err error) {
	if f.tokenFile == "" {
		return nil, nil
	}
	if tokens, err = serve.ReadTokens(f.tokenFile); err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	return tokens, nil
}

// serveConfig is poolConfig for a long-running process: its statements are prepared, unless there is a pooler.
func (a *app) serveConfig(conns int32) (*pgxpool.Config, error) {
	config, err := a.poolConfig()
	if err != nil {
		return nil, err
	}
	conn, _ := a.connString()
	if !strings.Contains(conn, "pool_max_conns") {
		config.MaxConns = conns
	}
	if !namesExecMode(conn) {
		prepareWithoutPooler(config)
	}
	return config, nil
}

// prepareWithoutPooler checks with the first connection whether it reaches Postgres itself, and prepares statements if
// so. A pooler such as PgBouncer invents a process ID, and may give the statements to other clients.
func prepareWithoutPooler(config *pgxpool.Config) {
	var mode atomic.Pointer[pgx.QueryExecMode] // nil: not known yet
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if mode.Load() == nil {
			conn, err := pgx.ConnectConfig(ctx, c.Copy())
			if err != nil {
				return err
			}
			defer conn.Close(ctx) //nolint:errcheck // it was only to ask
			var answers uint32
			if err := conn.QueryRow(ctx, "select pg_catalog.pg_backend_pid()").Scan(&answers); err != nil {
				return err
			}
			found := c.DefaultQueryExecMode
			if answers == conn.PgConn().PID() {
				found = pgx.QueryExecModeCacheStatement
			}
			mode.Store(&found)
		}
		c.DefaultQueryExecMode = *mode.Load()
		return nil
	}
}
