package httplimit

import (
	"errors"
	"net/http"

	"github.com/pglimit/ratelimit/pglimit"
)

// Errors that Config.Failed may get, besides those of the Limiter and of your own key function. Test them with
// errors.Is. Your key function may return them too.
var (
	// ErrNoKey means that the request has no such key. [FirstOf] then tries the next.
	ErrNoKey = errors.New("httplimit: the request has no key")

	// ErrBadRequest means that the client left out the key, or sent one that cannot be counted. It is answered with 400
	// and the text of the error, and not logged.
	ErrBadRequest = errors.New("httplimit: the request cannot be counted")

	// ErrUnauthorized means that the client must log in first. It is answered with 401 and the text of the error, and
	// not logged. [Unauthorized] is a key function that returns it.
	ErrUnauthorized = errors.New("httplimit: the request has no valid credentials")

	// ErrFallback means that no decision is known, and that Config.OnError of the Limiter denied the request.
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

// configError is an error caused by a field of Config.
type configError struct {
	field string
	err   error
}

func (e *configError) Error() string { return "httplimit: Config." + e.field + ": " + e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// StatusOf is the status with which an error is answered:
//
//   - 400 for an ErrBadRequest, such as a key that is longer than [pglimit.MaxKeyBytes] or not UTF-8, and if the
//     request costs more than the burst, so that it could never be granted;
//   - 401 for an ErrUnauthorized;
//   - 500 for any other error of Config.Key, an empty key, a cost below one, negative Tokens, and other faults of the
//     server's configuration;
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
