package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
)

// explainConnString says what is wrong with a connection string. If the string cannot be parsed, it quotes none of it:
// what looks like a host may be half a password.
func explainConnString(source string, err error) error {
	why := ""
	if i := strings.LastIndex(err.Error(), "`: "); i >= 0 {
		why = err.Error()[i+len("`: "):]
	}
	if port := os.Getenv("PGPORT"); why == "invalid port" && strings.HasPrefix(source, "PG") {
		return fmt.Errorf("PGPORT is %q: it must be a whole number from 1 to 65535", port)
	}
	if why == "" || strings.HasPrefix(why, "failed to parse") || why == "invalid port" {
		return notConnString(source)
	}
	return fmt.Errorf("%s: %s", source, notNumber.ReplaceAllString(why, "($1 is not a whole number)"))
}

var notNumber = regexp.MustCompile(`\(strconv\.\w+: parsing ("[^"]*"): [^)]*\)`)

func notConnString(source string) error {
	return fmt.Errorf("%s is not a connection string: write it like postgres://user:password@host:5432/database, "+
		"with special characters in the password percent-encoded (%%40 for @)", source)
}

// checkParts refuses a connection string that the driver parses differently from what was meant. The driver ends the
// password of a URL at the first @ and the host at the first /. So the rest of a password with these characters would
// become the host, and would be printed when it is not found.
func checkParts(conn, source string, config *pgconn.Config) error {
	bad := !isHost(config.Host) || slices.ContainsFunc(config.Fallbacks,
		func(f *pgconn.FallbackConfig) bool { return !isHost(f.Host) })
	switch {
	case bad && conn == "":
		return fmt.Errorf("%s: the host has characters that no host name has", source)
	case bad || atInPath(conn):
		return notConnString(source)
	}
	return nil
}

// isHost says whether host could be a host name, an address or the folder of a socket.
func isHost(host string) bool {
	if network, _ := pgconn.NetworkAddress(host, 0); network == "unix" {
		return true
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.:%", r)
	})
}

// atInPath says whether a connection string is a URL with an @ after the host and before the parameters. Its password
// then usually has a /. In the name of a database, @ is written %40.
func atInPath(conn string) bool {
	scheme, rest, isURL := strings.Cut(conn, "://")
	if !isURL || !strings.HasPrefix(scheme, "postgres") {
		return false
	}
	rest, _, _ = strings.Cut(rest, "?")
	_, path, _ := strings.Cut(rest, "/")
	return strings.Contains(path, "@")
}

// explainConnect says which server could not be connected to, why, and what to do.
func explainConnect(ctx context.Context, err error) error {
	var failed *pgconn.ConnectError
	if ctx.Err() != nil || !errors.As(err, &failed) {
		return err
	}
	var whys []string
	advice := ""
	attempts := causes(failed.Unwrap())
	if i := slices.IndexFunc(attempts, refusedByServer); i >= 0 {
		attempts = attempts[i : i+1] // a server that answers is the one that was meant
	}
	for _, cause := range attempts {
		why, todo := diagnose(cause)
		if !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
		if advice == "" {
			advice = todo
		}
	}
	return fmt.Errorf("cannot connect to PostgreSQL at %s: %s: %s",
		strings.Join(addresses(failed.Config), ", "), strings.Join(whys, "; "), advice)
}

func refusedByServer(err error) bool { return errors.As(err, new(*pgconn.PgError)) }

// addresses returns the addresses that were tried, each once: the driver tries an address twice if TLS is optional.
func addresses(config *pgconn.Config) []string {
	tried := []string{address(config.Host, config.Port)}
	for _, fallback := range config.Fallbacks {
		tried = append(tried, address(fallback.Host, fallback.Port))
	}
	slices.Sort(tried)
	return slices.Compact(tried)
}

func address(host string, port uint16) string {
	if network, socket := pgconn.NetworkAddress(host, port); network == "unix" {
		return socket
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// causes splits joined errors: one for each attempt to connect.
func causes(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			var all []error
			for _, part := range joined.Unwrap() {
				all = append(all, causes(part)...)
			}
			return all
		}
	}
	return []error{err}
}

// diagnose says why an attempt to connect failed, and what to do about it.
func diagnose(err error) (why, advice string) {
	var refused *pgconn.PgError
	var lookup *net.DNSError
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("%s (SQLSTATE %s)", refused.Message, refused.Code), adviceFor(refused.Code)
	case errors.As(err, &lookup):
		return "the host name is not known", "check the host"
	case pgconn.Timeout(err):
		return "no answer in time", "check host, port and firewall, or allow more with connect_timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused", "check that the server runs and listens there"
	case errors.Is(err, os.ErrNotExist):
		return "there is no such socket", "check that the server runs, or name a host"
	}
	_, reason, _ := strings.Cut(err.Error(), "): ") // without the address, which is said already
	if reason == "" {
		reason = err.Error()
	}
	return reason, "check host, port and sslmode"
}

func adviceFor(sqlState string) string {
	switch sqlState {
	case "28P01", "28000":
		return "check user, password and the server's pg_hba.conf"
	case "3D000":
		return "create the database or name another"
	case "42501":
		return "grant the role CONNECT on the database"
	case "53300":
		return "raise max_connections or close some"
	case "57P03":
		return "try again in a moment"
	}
	return "see the server's log"
}
