package bench

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// failure is an error by kind: how often, and what the first one said.
type failure struct {
	count int64
	first string
}

// Kinds of errors that are not Postgres's own. Those are named by SQLSTATE.
const (
	kindTimeout    = "timeout"    // --timeout
	kindConnection = "connection" // broken, or refused
	kindUnanswered = "unanswered" // still under way long after the end of the run
	kindUnserved   = "unserved"   // open loop: an arrival that was never sent
	kindOther      = "other"
)

// errUnanswered is the cause of a context that ends requests long after the end.
var errUnanswered = errors.New("no answer until long after the end of the run")

// classify names the kind of an error, and says whether the request may have been
// granted: an error of Postgres's means that nothing was taken, unless Postgres was
// going away.
func classify(err error) (kind string, lost bool) {
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		return pg.Code + nameOf(pg.Code), strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08")
	case errors.Is(err, context.DeadlineExceeded):
		return kindTimeout, true
	case errors.Is(err, context.Canceled):
		return kindUnanswered, true
	case errors.As(err, &network), pgconn.SafeToRetry(err):
		return kindConnection, true
	}
	return kindOther, true
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
