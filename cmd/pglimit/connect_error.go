package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// explainConnString says what is wrong with a connection string. If the string cannot be parsed, it quotes none of it:
// what looks like a host may be half a password.
func explainConnString(conn, source string, err error) error {
	_, why, _ := strings.Cut(err.Error(), "`: ")
	if conn != "" && (why == "" || strings.HasPrefix(why, "failed to parse") || why == "invalid port") {
		return notConnString(source)
	}
	return fmt.Errorf("%s: %s", source, why)
}

func notConnString(source string) error {
	return fmt.Errorf("%s is not a connection string: write it like postgres://user:password@host:5432/database, "+
		"with special characters in the password percent-encoded (%%40 for @)", source)
}

// checkParts refuses a connection string that the driver parses differently from what was meant. The driver ends the
// password of a URL at the first @ and the host at the first /. So the rest of a password with these characters would
// become the host, and would be printed when it is not found. In the name of a database, @ is written %40.
func checkParts(conn, source string, config *pgconn.Config) error {
	hosts := []string{config.Host}
	for _, fallback := range config.Fallbacks {
		hosts = append(hosts, fallback.Host)
	}
	inHost := slices.ContainsFunc(hosts, func(host string) bool {
		network, _ := pgconn.NetworkAddress(host, 0)
		return network != "unix" && strings.ContainsAny(host, "@#")
	})
	url, _, _ := strings.Cut(conn, "?")
	switch {
	case inHost && conn == "":
		return fmt.Errorf("%s: the host has characters that no host name has", source)
	case inHost || strings.Contains(url, "://") && strings.Count(url, "@") > 1:
		return notConnString(source)
	}
	return nil
}

// explainConnect says which server could not be connected to, and why.
func explainConnect(ctx context.Context, err error) error {
	var failed *pgconn.ConnectError
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return err
	}
	attempts := strings.Split(failed.Unwrap().Error(), "\n")
	for _, attempt := range attempts {
		if strings.Contains(attempt, "(SQLSTATE ") { // a server that answers is the one that was meant
			return fmt.Errorf("cannot connect to PostgreSQL: %s", attempt)
		}
	}
	slices.Sort(attempts) // the driver tries an address twice if TLS is optional
	return fmt.Errorf("cannot connect to PostgreSQL: %s: check that it runs and listens there, host, port and sslmode",
		strings.Join(slices.Compact(attempts), "; "))
}
