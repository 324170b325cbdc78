package httplimit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// OnFailure, as [Config].Refund, gives the tokens back of requests that failed, with a status of
// 400 or more, or by [Failed]: only successes count. Requests whose client has gone count too, whatever their
// status: a client could bring that about as often as it likes.
func OnFailure(r *http.Request, status int) bool {
	return failed(r, status) && !gone(r)
}

// OnServerError, as [Config].Refund, gives the tokens back of requests that failed by a fault of the
// server's, with a status of 500 or more. Requests whose client has gone count, as for [OnFailure]:
// a proxy answers those with 502.
func OnServerError(r *http.Request, status int) bool {
	return status >= http.StatusInternalServerError && !gone(r)
}

// OnSuccess, as [Config].Refund, gives the tokens back of requests that succeeded, with a status
// below 400 and without [Failed]: only failures count, such as wrong passwords. The token is taken while
// the request runs: the burst is also how many may run at once. Requests whose client has gone count: their
// handlers stop without a status, or before they know one, and have worked all the same.
func OnSuccess(r *http.Request, status int) bool { return !failed(r, status) && !gone(r) }

func failed(r *http.Request, status int) bool {
	return status >= http.StatusBadRequest || passed.Failed(r.Context())
}

// gone: the client has closed its connection or its stream. A deadline is of the server's own making.
func gone(r *http.Request) bool { return errors.Is(r.Context().Err(), context.Canceled) }

// refundTimeout ends a refund if the Limiter has NoTimeout: nobody waits without end.
const refundTimeout = 5 * time.Second

// pass the request on. What was taken for it is given back if Config.Refund says so.
func (m *middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, taken []pglimit.Decision) {
	if m.Refund == nil || fallback(taken) { // what a fallback granted was not taken
		next.ServeHTTP(w, r)
		return
	}
	record := &recorder{ResponseWriter: w}
	returned := false
	defer func() { // also if the handler panics, which goes on behind this
		if !returned { // unless an answer was sent already: then its client has it
			record.sends(http.StatusInternalServerError)
		}
		status := record.final()
		if !passed.Settled(r.Context()) && m.Refund(r, status) {
			m.giveBack(r, taken)
		}
	}()
	next.ServeHTTP(record.withOptions(), r)
	returned = true
}

// giveBack also if the client has gone, as Limiter.Refund does: that is when requests fail.
func (m *middleware) giveBack(r *http.Request, taken []pglimit.Decision) {
	ctx, cancel := context.WithTimeout(r.Context(), refundTimeout)
	defer cancel()
	for _, d := range taken {
		if err := m.limiter.Refund(ctx, d, d.Granted); err != nil {
			m.unpaid.Add(ctx, m.Logger, "httplimit: tokens not given back", err)
		}
	}
}
