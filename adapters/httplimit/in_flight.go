package httplimit

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/semaphore"
)

// InFlight says how [MaxInFlight] limits.
type InFlight struct {
	// Key says whom a request is counted for; Constant("all") counts all requests together. Required.
	Key KeyFunc

	// Wait lets requests wait in line for a place, as long as MaxWait of the semaphore's Config and the client allow.
	// False: a request without a place is rejected at once.
	Wait bool

	// Failed answers rejected requests: err is semaphore.ErrFull, or an error of Key or of the database. Retry-After is
	// set. Nil: WriteFailed.
	Failed func(w http.ResponseWriter, r *http.Request, err error)

	// Logger gets failures other than semaphore.ErrFull. Nil: slog.Default().
	Logger *slog.Logger
}

// MaxInFlight makes a middleware that limits how many requests of a key are served at once, in all processes together,
// to the places of the semaphore. Others get 503 and Retry-After. A request holds its place until its handler ends,
// also by a panic or because the client has gone. If the place is lost (see [semaphore.Permit]), the request's context
// is cancelled.
//
// Put it around the middleware of [New], not inside: a request without a place then spends no token.
//
// It panics if places or Key is nil.
func MaxInFlight(places *semaphore.Semaphore, config InFlight) func(http.Handler) http.Handler {
	if places == nil || config.Key == nil {
		//nolint:forbidigo // as New does
		panic(errors.New("httplimit: MaxInFlight needs a semaphore and InFlight.Key"))
	}
	m := newMiddleware(nil, Config{Failed: config.Failed, Logger: config.Logger})
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			permit, err := config.acquire(places, r)
			if err != nil {
				m.fail(w, r, err, time.Second)
				return
			}
			defer permit.Release(r.Context()) //nolint:errcheck // the place comes back with the TTL
			inner := r.WithContext(permit.Context())
			next.ServeHTTP(w, inner)
			r.Pattern = inner.Pattern // as New does
		})
	}
}

func (c *InFlight) acquire(places *semaphore.Semaphore, r *http.Request) (*semaphore.Permit, error) {
	key, err := admission.Key(c.Key(r))
	if err != nil {
		return nil, err
	}
	return admission.Place(r.Context(), places, key, c.Wait)
}
