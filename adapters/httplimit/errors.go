package httplimit

import (
	"errors"
	"net/http"

	"github.com/pglimit/ratelimit/pglimit"
)

// The errors that Config.Failed may get, besides those of the Limiter and of a key function of
// yours, to be tested with errors.Is. A key function of yours may return them too.
var (
	// ErrNoKey: the request has no such key. [FirstOf] then tries the next.
	ErrNoKey = errors.New("httplimit: the request has no key")

	// ErrBadRequest: the client left out the key, or sent one that cannot be counted. It is
	// answered with 400 and not logged, and the text of the error is told to the client.
	ErrBadRequest = errors.New("httplimit: the request cannot be counted")

	// ErrUnauthorized: the client must log in first. It is answered with 401 and not logged, and the text of
	// the error is told to the client. [Unauthorized] is a key function that returns it.
	ErrUnauthorized = errors.New("httplimit: the request has no valid credentials")

	// ErrFallback: no decision is known, and Config.OnError of the Limiter has denied the request.
	ErrFallback = errors.New("httplimit: no decision is known, and Config.OnError of the limiter denied the request")
)

// keyError says why a request has no key, and which of the errors above it is.
type keyError struct {
	why       string
	is        []error
	challenge string // of ErrUnauthorized
}

func (e *keyError) Error() string   { return e.why }
func (e *keyError) Unwrap() []error { return e.is }

// configError is what a field of Config brought about.
type configError struct {
	field string
	err   error
}

func (e *configError) Error() string { return "httplimit: Config." + e.field + ": " + e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// StatusOf is the status with which an error is answered:
//
//   - 400 if it is an ErrBadRequest, as of a key that is longer than [pglimit.MaxKeyBytes] or no
//     UTF-8, or if the request costs more than the burst, so that it could never be granted;
//   - 401 if it is an ErrUnauthorized;
//   - 500 for any other error of Config.Key, an empty key, a cost of less than one, negative Tokens,
//     and what else the server's configuration has wrong;
//   - 503 for everything else: no decision is known.
func StatusOf(err error) int {
	var request *pglimit.RequestError
	switch {
	case errors.Is(err, ErrBadRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnauthorized):
		return http.StatusUnauthorized
	case errors.As(err, new(*configError)):
		return http.StatusInternalServerError
	case errors.As(err, &request):
		if request.Field == "Tokens" {
			return http.StatusBadRequest
		}
		return http.StatusInternalServerError
	case errors.As(err, new(*pglimit.RuleError)), errors.As(err, new(*pglimit.LimitError)), errors.Is(err, errors.ErrUnsupported):
		return http.StatusInternalServerError
	}
	return http.StatusServiceUnavailable
}
