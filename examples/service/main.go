// Command service is a complete HTTP service with two limited endpoints: migrations, limits, metrics, cleanup of the
// database, graceful stop.
//
//	go run ./examples/service
//
// starts two instances of it on a throwaway Postgres, with users who make requests, and prints their addresses. With
// --database-url or DATABASE_URL it is one instance on that database, which it migrates. service.go is the part to
// copy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pglimit/ratelimit/examples/service/internal/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		slog.Error("the service ended", "error", err)
		os.Exit(1)
	}
}

// run the program until ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // a mistake is reported once, by main
	database := flags.String("database-url", os.Getenv("DATABASE_URL"), "`URL` of the database to run one instance on, by default DATABASE_URL; if there is none, two instances on a throwaway Postgres")
	flags.Lookup("database-url").DefValue = "" // its password is not for the help
	listen := flags.String("listen", "127.0.0.1:8081", "`address` to serve on; a second instance takes the next port")
	noDownload := flags.Bool("no-download", false, "do not fetch a Postgres where neither PostgreSQL nor Docker is installed")
	users := -1
	flags.Func("load", "make the requests of this many `users`, without end (default 50 for two minutes on a throwaway Postgres, else none)", func(text string) (err error) {
		users, err = load.ParseUsers(text)
		return err
	})
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.Usage()
		return nil
	case err != nil:
		return fmt.Errorf("%w (--help lists the flags)", err)
	case flags.NArg() > 0:
		extra := flags.Arg(0)
		if strings.ContainsAny(extra, ":=@") {
			extra = "..." // a connection string, or a part of one
		}
		return fmt.Errorf("%q is too much: there are flags only (--help lists them)", extra)
	}

	// Check the addresses before a Postgres is started.
	addresses := []string{*listen}
	if *database == "" {
		next, err := nextPort(*listen)
		if err != nil {
			return err
		}
		addresses = append(addresses, next)
	}
	var listeners []net.Listener
	for _, address := range addresses {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("%w (choose another address with --listen, such as 127.0.0.1:8081)", err)
		}
		defer func() { _ = listener.Close() }() // unless the server has closed it
		listeners = append(listeners, listener)
	}

	if *database != "" {
		config, err := pgxpool.ParseConfig(*database)
		if err != nil {
			return fmt.Errorf("--database-url, or DATABASE_URL: %w", err)
		}
		from := "DATABASE_URL"
		flags.Visit(func(f *flag.Flag) {
			if f.Name == "database-url" {
				from = "--database-url"
			}
		})
		to := config.ConnConfig
		say(out, "using the database of %s, %s on %s: migrating its schema pglimit, and cleaning up there", from, to.Database, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
		return serve(ctx, *database, listeners, users, 0, out)
	}
	say(out, "no database is named (--database-url, DATABASE_URL): starting a throwaway Postgres")
	url, remove, err := throwaway(ctx, !*noDownload, out)
	if err != nil {
		return err
	}
	defer func() {
		if err := remove(); err != nil {
			slog.Error("removing the throwaway Postgres", "error", err)
			return
		}
		say(out, "the throwaway Postgres was removed")
	}()
	say(out, "buckets: psql '%s' -c 'select * from pglimit.buckets'", url)
	lasts := time.Duration(0)
	if users < 0 {
		users, lasts = 50, 2*time.Minute
		say(out, "50 users make requests for two minutes; --load 50 goes on")
	}
	return serve(ctx, url, listeners, users, lasts, out)
}

// serve runs an instance per listener until ctx ends or one of them fails. The load begins when the database is
// migrated: see [load.New].
func serve(ctx context.Context, database string, listeners []net.Listener, users int, lasts time.Duration, out io.Writer) error {
	var services []*service
	var endpoints []string
	for _, listener := range listeners {
		s, err := newService(ctx, database)
		if err != nil {
			return err
		}
		defer s.close()
		services = append(services, s)
		url := urlOf(listener.Addr())
		endpoints = append(endpoints, url+"search", url+"export")
	}

	makeLoad := func(context.Context) {}
	if users >= 0 {
		l, err := load.New(users, lasts, endpoints...)
		if err != nil {
			return err
		}
		makeLoad = l.Run
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range services {
		group.Go(func() error { return s.serve(ctx, listeners[i]) })
		url := urlOf(listeners[i].Addr())
		say(out, "instance %d: the admin page %sadmin/, metrics %smetrics", i+1, url, url)
	}
	group.Go(func() error {
		for _, s := range services {
			select {
			case <-s.migrated:
			case <-ctx.Done():
				return nil
			}
		}
		say(out, "try: curl -i -H 'X-User: ann' %s", endpoints[0])
		makeLoad(ctx)
		return nil
	})
	return group.Wait()
}

func say(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format+"\n", args...) // stdout is gone
}
