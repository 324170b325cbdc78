package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/pgserver"
	"github.com/pglimit/ratelimit/migrations"
)

// throwaway starts a Postgres on this machine: from installed binaries, in a container, or, if it may download, from
// downloaded binaries. remove leaves only those.
func throwaway(ctx context.Context, download bool, out io.Writer) (url string, remove func() error, err error) {
	o := pgserver.Options{Notice: func(what string) { say(out, "%s", what) }}
	if !download {
		o.From = []pgserver.Source{pgserver.Local, pgserver.Docker}
	}
	server, err := pgserver.Start(ctx, o)
	if err != nil {
		return "", nil, fmt.Errorf("%w, or name a database with --database-url", err)
	}
	if err := migrate(ctx, server.URL("")); err != nil {
		return "", nil, errors.Join(err, server.Stop())
	}
	return server.URL(""), server.Stop, nil
}

// migrate a database before its services start. They would do it, and complain until it is done.
func migrate(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrations.Up(ctx, pool, migrations.WithoutExclusionRange())
}

// nextPort is the address with the port after it, or any free port if it is 0.
func nextPort(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("--listen is %q: it must be host:port, such as 127.0.0.1:8081", address)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 65535 {
		return "", fmt.Errorf("--listen is %q: the port must be a number from 0 to 65534", address)
	}
	if number > 0 {
		number++
	}
	return net.JoinHostPort(host, strconv.FormatUint(number, 10)), nil
}

// urlOf returns the URL of a listener for this machine.
func urlOf(address net.Addr) string {
	host, port, err := net.SplitHostPort(address.String())
	if ip := net.ParseIP(host); err != nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}
