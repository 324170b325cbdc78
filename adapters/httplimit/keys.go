package httplimit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
)

// KeyFunc returns the key of a request: whom it is counted for. An error is answered by [Config].Failed. It is logged
// as a fault of the server, unless it is an [ErrBadRequest] or [ErrUnauthorized].
type KeyFunc func(r *http.Request) (string, error)

// Subject counts requests by what authentication found: a user, a tenant, an organisation. The function of returns it,
// usually from the context of the request. If it returns "", the error is [ErrNoKey] and the answer 500, because the
// middleware that authenticates, and rejects unknown clients, belongs in front. For requests without a subject, see
// [FirstOf]: FirstOf(Subject(…), Unauthorized("Bearer")) answers them with 401.
//
// The key is kind, a colon and the subject: "user:42". "Ann" and "ann" are different keys: return the subject as it is
// stored, not as the client has spelt it.
func Subject(kind string, of func(r *http.Request) string) KeyFunc {
	return func(r *http.Request) (string, error) {
		subject := of(r)
		if subject == "" {
			return "", fmt.Errorf("%w: there is no %s: put the middleware that authenticates in front of the limiter",
				ErrNoKey, kind)
		}
		return kind + ":" + subject, nil
	}
}

// Header counts requests by a header field, such as X-Api-Key, that was checked before: a client that may send anything
// gets a new bucket each time. If the field is missing, the error is [ErrNoKey] and [ErrBadRequest]; if it occurs
// twice, [ErrBadRequest]. Both are answered with 400.
//
// The key is the name in lower case, a colon and the value: "x-api-key:5f2e". It is stored in the database: for secrets
// use [Hashed].
func Header(name string) KeyFunc {
	field, prefix := http.CanonicalHeaderKey(name), strings.ToLower(name)+":"
	return func(r *http.Request) (string, error) {
		switch values := r.Header[field]; {
		case len(values) == 0 || len(values) == 1 && values[0] == "":
			return "", fmt.Errorf("%w: %w: the header field %s is missing", ErrNoKey, ErrBadRequest, name)
		case len(values) > 1:
			return "", fmt.Errorf("%w: the header field %s is there %d times", ErrBadRequest, name, len(values))
		default:
			return prefix + values[0], nil
		}
	}
}

// Route counts requests by the pattern of [http.ServeMux] that they matched: "route:GET /users/{id}". Wrap the handlers
// that the mux calls. Around the mux the pattern is not known yet, and the error is [ErrNoKey]. (Do not use the path as
// a key: clients choose it.)
func Route(r *http.Request) (string, error) {
	if r.Pattern == "" {
		return "", fmt.Errorf("%w: no pattern of a http.ServeMux was matched yet: wrap the handlers of the mux, not the mux",
			ErrNoKey)
	}
	return "route:" + r.Pattern, nil
}

// Unauthorized answers every request with 401 Unauthorized, and the challenge, such as "Bearer", in WWW-Authenticate.
// Use it at the end of a [FirstOf], if nothing authenticates in front of the limiter.
func Unauthorized(challenge string) KeyFunc {
	return func(*http.Request) (string, error) {
		return "", challengeError(challenge)
	}
}

// Constant counts all requests together, for a limit of the whole service.
func Constant(key string) KeyFunc {
	return func(*http.Request) (string, error) { return key, nil }
}

// Join counts requests by all of the keys at once, such as each user on each route: "user:42|route:GET /users/{id}".
// Each key must be present.
func Join(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		return admission.Join(keys, func(key KeyFunc) (string, error) { return key(r) })
	}
}

// FirstOf counts a request by the first of the keys that it has, such as the user if there is one, else the address.
// Any error other than [ErrNoKey] ends the search.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		return admission.FirstOf(keys, func(key KeyFunc) (string, error) { return key(r) })
	}
}

// Hashed counts requests by a hash of the key, 43 characters, and the database stores only the hash. For API keys,
// which nobody can guess, the secret may be nil. For guessable keys, such as addresses of people, use a secret of at
// least 16 random bytes, the same in all instances: the hash is an HMAC-SHA256.
func Hashed(key KeyFunc, secret []byte) KeyFunc {
	hash := admission.Hash(secret)
	return func(r *http.Request) (string, error) { return hash(key(r)) }
}
