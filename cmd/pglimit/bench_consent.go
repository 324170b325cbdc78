package main

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// mayLoad refuses to load a server on another machine unless the user says yes: others may depend on it, and
// DATABASE_URL may be that of production, set long ago. It returns a description of the server.
func mayLoad(config *pgx.ConnConfig, source string, yes bool) (what string, err error) {
	servers, local := serversOf(config)
	what = fmt.Sprintf("the database %s on %s (%s)", config.Database, strings.Join(servers, ", "), source)
	if !local && !yes {
		return what, fmt.Errorf("%s is not on this machine: --yes loads it all the same; where %s is not set, a throwaway is loaded", what, source)
	}
	return what, nil
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
