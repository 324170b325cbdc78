package bench

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
)

// failure is an error by kind: how often, and what the first one said.
type failure struct {
	count int64
	first string
}

// Kinds of errors other than Postgres's own, which are named by SQLSTATE.
const (
	kindTimeout    = "timeout"    // Scenario.Timeout
	kindConnection = "connection" // broken, or refused
	kindUnanswered = "unanswered" // still under way long after the end of the run
	kindUnserved   = "unserved"   // open loop: an arrival that was never sent
	kindOverloaded = "overloaded" // pglimit.Config.MaxWaiting
	kindBreaker    = "breaker"    // not sent, because Postgres had just not answered others
	kindGivenUp    = "given up"   // under way when Postgres stopped answering
	kindOther      = "other"
)

// errUnanswered is the cause of a context that cancels requests long after the end.
var errUnanswered = errors.New("no answer until long after the end of the run")

// classify names the kind of an error. lost says that the request may have been granted nevertheless. It was not if it
// was never sent, or if Postgres answered with an error and was not shutting down.
func classify(err error) (kind string, lost bool) {
	var pg *pgconn.PgError
	sent := !neverSent(err)
	switch {
	case errors.Is(err, pglimit.ErrOverloaded):
		return kindOverloaded, false
	case pglimit.CauseOf(err) == pglimit.CauseBreaker:
		return kindBreaker, false
	case errors.As(err, &pg):
		return pg.Code + nameOf(pg.Code), sent && goingAway(pg.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return kindTimeout, sent
	case errors.Is(err, context.Canceled):
		return kindUnanswered, sent
	case !sent, postgres.IsBroken(err):
		return kindConnection, sent
	case pglimit.CauseOf(err) == pglimit.CauseUnavailable:
		return kindGivenUp, sent
	}
	return kindOther, true
}

// neverSent says that Postgres did not get the request.
func neverSent(err error) bool {
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || pgconn.SafeToRetry(err)
}

// goingAway says that Postgres closes or refuses connections with this code.
func goingAway(code string) bool {
	return strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "08")
}

// unreachable says that there is no connection, or no place to wait for one, so that the next request would most likely
// fail as fast.
func unreachable(err error) bool {
	kind, _ := classify(err)
	return kind == kindConnection || kind == kindOverloaded || kind == kindBreaker || goingAway(kind) || neverSent(err)
}

// stillWaiting says that errors of this kind ended a wait: the answer would have taken longer.
func stillWaiting(kind string) bool {
	return kind == kindTimeout || kind == kindUnanswered || kind == kindUnserved
}

// nameOf is the condition name of the codes that a limiter under load is likely to
// see, see appendix A of the PostgreSQL manual.
func nameOf(code string) string {
	name := map[string]string{
		"23505": "unique_violation",
		"23P01": "exclusion_violation",
		"40001": "serialization_failure",
		"40P01": "deadlock_detected",
		"53300": "too_many_connections",
		"55P03": "lock_not_available",
		"57014": "query_canceled",
		"57P01": "admin_shutdown",
		"57P03": "cannot_connect_now",
	}[code]
	if name == "" {
		return ""
	}
	return " " + name
}
