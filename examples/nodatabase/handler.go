// Package nodatabase is a handler with a limit, whose test needs no database and waits for nothing.
package nodatabase

import (
	"net/http"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

// NewHandler sends a code by text message, which costs money: each number gets as many as the limiter
// allows, and none while nobody knows how many it had.
func NewHandler(limiter *pglimit.Limiter, send func(number string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		number := r.FormValue("number")
		d, err := limiter.Allow(r.Context(), number)
		switch {
		case err != nil:
			httplimit.WriteFailed(w, r, err) // 503
		case !d.Allowed:
			httplimit.Deny(w, r, d) // 429, with Retry-After
		default:
			send(number)
		}
	})
}
