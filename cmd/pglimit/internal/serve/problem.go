package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/pglimit"
)

// problem is the body of an answer that is no decision, as in RFC 9457. Its type is about:blank,
// which is not written: the status says what kind it is.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Field  string `json:"field,omitempty"` // of the request's body: "key", "requests[2].tokens"
	Cause  string `json:"cause,omitempty"` // of a failure: see pglimit.Cause
}

func newProblem(status int, format string, args ...any) *problem {
	return &problem{Title: http.StatusText(status), Status: status,
		Detail: bounded(fmt.Sprintf(format, args...), 1<<10)}
}

// longestName of a field that an answer repeats.
const longestName = 64

// bounded returns the text, or its beginning and its length: a client may send a megabyte.
func bounded(text string, longest int) string {
	if len(text) <= longest {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:longest], ""), len(text))
}

// invalid returns a problem with a field of the body.
func invalid(field, why string) *problem {
	p := newProblem(http.StatusBadRequest, "%s %s", field, why)
	p.Field = field
	return p
}

// requestAt names one of several requests.
func requestAt(i int) string { return fmt.Sprintf("requests[%d]", i) }

// in puts the field of one of several requests below that request.
func (p *problem) in(parent string) *problem {
	if p.Field != "" {
		p.Field, p.Detail = parent+"."+p.Field, parent+"."+p.Detail
	}
	return p
}

// failures describe a failure to clients. The exact error is only logged.
var failures = map[pglimit.Cause]string{
	pglimit.CauseOther:       "Postgres failed, or answered what it should not",
	pglimit.CauseClosed:      "this server is stopping",
	pglimit.CauseUnavailable: "Postgres cannot be reached",
	pglimit.CauseTimeout:     "Postgres did not answer in time",
	pglimit.CauseBreaker:     "Postgres did not answer the calls before, so it was not asked",
	pglimit.CauseOverloaded:  "too many requests are waiting for Postgres",
	pglimit.CauseNotMigrated: "the database is not migrated: run \"pglimit migrate up\"",
	pglimit.CausePermission: "the database role lacks a right, or row security hides rows from it: see \"pglimit " +
		"migrate grants --help\"",
	pglimit.CauseSetting: "a setting of the database's URL, the role or the database prevents decisions: the log " +
		"says which",
	pglimit.CausePooler: "a pooler such as PgBouncer mixes up prepared statements: add " +
		"default_query_exec_mode=exec to the database's URL",
	pglimit.CauseRefused: "Postgres refused the request: somebody holds the key's row locked, or its encoding " +
		"cannot hold the key",
}

// problemOf says why the request got no decision.
func problemOf(err error) *problem {
	var one *pglimit.IndexError
	var request *pglimit.RequestError
	var limit *pglimit.LimitError
	var rule *pglimit.RuleError
	switch {
	case errors.As(err, &rule):
		p := newProblem(http.StatusInternalServerError, "no decision is known: row %d of pglimit.limits cannot be "+
			"kept: %s: correct it, or disable or delete it", rule.Rule.ID, bare(rule.Err))
		p.Cause = pglimit.CauseOther.String()
		return p
	case errors.As(err, &one):
		return problemOf(one.Err).in(requestAt(one.Index))
	case errors.As(err, &request):
		return invalid(fieldOf(request.Field), request.Why)
	case errors.As(err, &limit):
		return invalid("limit", strings.ToLower(limit.Field)+" "+limit.Why)
	case errors.Is(err, errors.ErrUnsupported):
		return newProblem(http.StatusBadRequest, "%s", bare(err))
	}
	cause := pglimit.CauseOf(err)
	if cause == pglimit.CauseOther && errors.Is(err, context.Canceled) {
		return newProblem(http.StatusBadRequest,
			"the client closed its half of the connection, which ends the request; whether it was done is not known")
	}
	status := http.StatusServiceUnavailable
	if needsRepair(cause) {
		status = http.StatusInternalServerError
	}
	p := newProblem(status, "no decision is known: %s", failureText(err))
	p.Cause = cause.String()
	return p
}

// problemOfLimit is problemOf for a request whose client sent that limit, or none: a limit of the server that cannot be
// applied is not the client's fault.
func problemOfLimit(err error, sent pglimit.Limit) *problem {
	var limit *pglimit.LimitError
	if errors.As(err, new(*pglimit.RuleError)) || !errors.As(err, &limit) || limit.Limit == sent {
		return problemOf(err)
	}
	p := newProblem(http.StatusInternalServerError,
		"no decision is known: the limit %v of this server cannot be kept: %s", limit.Limit, bare(limit))
	p.Cause = pglimit.CauseOther.String()
	return p
}

// failureText says why the server cannot decide. It names no host; the log does.
func failureText(err error) string {
	if errors.Is(err, pglimit.ErrReadOnly) {
		return "this Postgres is read-only: it is a standby, or default_transaction_read_only is on"
	}
	return failures[pglimit.CauseOf(err)]
}

// needsRepair says that the failure does not end by itself.
func needsRepair(cause pglimit.Cause) bool {
	switch cause {
	case pglimit.CauseOther, pglimit.CauseNotMigrated, pglimit.CausePermission,
		pglimit.CauseSetting, pglimit.CausePooler:
		return true
	}
	return false
}

func fieldOf(field string) string {
	if name, ok := map[string]string{"ID": "id", "Unit": "tokens", "Source": "decision.source",
		"At": "decision.at"}[field]; ok {
		return name
	}
	return strings.ToLower(field)
}

// retryAfterFailure is when to ask again after an answer of 503.
const retryAfterFailure = time.Second

func (p *problem) write(w http.ResponseWriter) {
	switch p.Status {
	case http.StatusServiceUnavailable:
		setRetryAfter(w, retryAfterFailure)
	case http.StatusUnauthorized:
		w.Header()["Www-Authenticate"] = []string{"Bearer", `Basic realm="pglimit", charset="UTF-8"`}
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

func setRetryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(seconds(d), 10))
}

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(body) //nolint:errchkjson // our types; if the client has gone, nobody is left to be told
}
