package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// OnFailure is a [Config].Refund that returns the tokens of requests that failed: with a status of 400 or more, or by
// [Failed]. Only successes count. Requests whose client has gone count too, whatever their status: a client could cause
// that as often as it likes.
func OnFailure(r *http.Request, status int) bool {
	return failed(r, status) && !gone(r)
}

// OnServerError is a [Config].Refund that returns the tokens of requests with a status of 500 or more. Requests whose
// client has gone count, as for [OnFailure]: a proxy answers those with 502.
func OnServerError(r *http.Request, status int) bool {
	return status >= http.StatusInternalServerError && !gone(r)
}

// OnSuccess is a [Config].Refund that returns the tokens of requests that succeeded: with a status below 400 and
// without [Failed]. Only failures count, such as wrong passwords. The token is held while the request runs, so the
// burst also bounds how many run at once. Requests whose client has gone count, because their handlers may stop before
// they know a status.
func OnSuccess(r *http.Request, status int) bool { return !failed(r, status) && !gone(r) }

func failed(r *http.Request, status int) bool {
	return status >= http.StatusBadRequest || admission.Failed(r.Context())
}

// gone says whether the client has closed its connection or stream. (A deadline is set by the server itself.)
func gone(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

// pass calls the handler, and refunds what was taken if Config.Refund says so.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, taken []pglimit.Decision) {
	if m.Refund == nil || admission.Fallback(taken) { // a fallback takes no tokens
		next.ServeHTTP(w, r)
		return
	}
	record := &recorder{ResponseWriter: w}
	returned := false
	defer func() { // also if the handler panics; the panic continues
		if !returned { // unless an answer was sent already: then its client has it
			record.sends(http.StatusInternalServerError)
		}
		status := record.final()
		if !admission.Settled(r.Context()) && m.Refund(r, status) {
			m.limits.GiveBack(r.Context(), taken)
		}
	}()
	next.ServeHTTP(record, r)
	returned = true
}
