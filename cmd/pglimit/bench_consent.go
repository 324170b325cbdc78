package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// mayLoad asks before loading a server on another machine: others may depend on it, and DATABASE_URL may be that of
// production, set long ago. It returns a description of the server.
func (a *app) mayLoad(ctx context.Context, config *pgx.ConnConfig, source string, yes bool) (what string, err error) {
	servers, local := serversOf(config)
	what = fmt.Sprintf("the database %s on %s (%s)", config.Database, strings.Join(servers, ", "), source)
	switch {
	case local || yes:
		return what, nil
	case !isTerminal(os.Stdin) || !isTerminal(a.stderr):
		return what, fmt.Errorf("%s is not on this machine: --yes loads it all the same; where %s is not set, a throwaway is loaded", what, source)
	}
	return what, a.confirm(ctx, os.Stdin, what)
}

// confirm asks on stderr, and returns nil if the answer is yes.
func (a *app) confirm(ctx context.Context, in io.Reader, what string) error {
	_, _ = fmt.Fprintf(a.stderr, "pglimit: %s is not on this machine, and a load slows down whoever depends on it. Load it? [y/N] ", what)
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // none is no
		answered <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answered:
		if answer == "y" || answer == "yes" {
			return nil
		}
		return errors.New("nothing was loaded")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serversOf returns all servers that the driver may connect to, and whether all are on this machine.
func serversOf(config *pgx.ConnConfig) (names []string, local bool) {
	local = true
	add := func(host string, port uint16) {
		name := host
		if !strings.HasPrefix(host, "/") && !strings.HasPrefix(host, "@") { // a socket
			name = net.JoinHostPort(host, strconv.Itoa(int(port)))
			address, err := netip.ParseAddr(host)
			local = local && (host == "localhost" || err == nil && (address.IsLoopback() || address.IsUnspecified()))
		}
		if !slices.Contains(names, name) { // the driver lists a server with TLS and without
			names = append(names, name)
		}
	}
	add(config.Host, config.Port)
	for _, other := range config.Fallbacks {
		add(other.Host, other.Port)
	}
	return names, local
}
