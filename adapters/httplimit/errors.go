package httplimit

import (
	"errors"
	"net/http"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
)

// Errors that Config.Failed may get, besides those of the Limiter and of your own key function. Test them with
// errors.Is. Your key function may return them too.
var (
	// ErrNoKey means that the request has no such key. [FirstOf] then tries the next.
	ErrNoKey = admission.ErrNoKey

	// ErrBadRequest means that the client left out the key, or sent one that cannot be counted. It is answered with 400
	// and the text of the error, and not logged.
	ErrBadRequest = admission.ErrBadRequest

	// ErrUnauthorized means that the client must log in first. It is answered with 401 and the text of the error, and
	// not logged. [Unauthorized] is a key function that returns it.
	ErrUnauthorized = errors.New("httplimit: the request has no valid credentials")

	// ErrFallback means that no decision is known, and that Config.OnError of the Limiter denied the request.
	ErrFallback = admission.ErrFallback
)

// challengeError is an ErrUnauthorized with the challenge that the client gets.
type challengeError string

func (challengeError) Error() string { return "this needs credentials: log in first" }
func (challengeError) Unwrap() error { return ErrUnauthorized }

// StatusOf is the status with which an error is answered:
//
//   - 400 for an ErrBadRequest, such as a key that is longer than [pglimit.MaxKeyBytes] or not UTF-8, and if the
//     request costs more than the burst, so that it could never be granted;
//   - 401 for an ErrUnauthorized;
//   - 500 for any other error of Config.Key, an empty key, a cost below one, negative Tokens, and other faults of the
//     server's configuration;
//   - 503 for everything else: no decision is known.
func StatusOf(err error) int {
	if errors.Is(err, ErrUnauthorized) && !errors.Is(err, ErrBadRequest) {
		return http.StatusUnauthorized
	}
	switch admission.FaultOf(err) {
	case admission.OfClient:
		return http.StatusBadRequest
	case admission.OfConfig:
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}
