package httplimit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

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
			return "", &keyError{why: "there is no " + kind + ": put the middleware that authenticates in front of the limiter", is: []error{ErrNoKey}}
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
			return "", &keyError{why: "the header field " + name + " is missing", is: []error{ErrNoKey, ErrBadRequest}}
		case len(values) > 1:
			return "", &keyError{why: fmt.Sprintf("the header field %s is there %d times", name, len(values)), is: []error{ErrBadRequest}}
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
		return "", &keyError{why: "no pattern of a http.ServeMux was matched yet: wrap the handlers of the mux, not the mux", is: []error{ErrNoKey}}
	}
	return "route:" + r.Pattern, nil
}

// Unauthorized answers every request with 401 Unauthorized, and the challenge, such as "Bearer", in WWW-Authenticate.
// Use it at the end of a [FirstOf], if nothing authenticates in front of the limiter.
func Unauthorized(challenge string) KeyFunc {
	return func(*http.Request) (string, error) {
		return "", &keyError{why: "this needs credentials: log in first", is: []error{ErrUnauthorized}, challenge: challenge}
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
		parts := make([]string, len(keys))
		for i, of := range keys {
			part, err := of(r)
			if err != nil {
				return "", err
			}
			if part == "" {
				return "", &keyError{why: fmt.Sprintf("part %d of Join is empty", i), is: []error{ErrNoKey}}
			}
			parts[i] = escape.Replace(part)
		}
		return strings.Join(parts, "|"), nil
	}
}

// escape keeps different keys different after they are joined.
var escape = strings.NewReplacer("%", "%25", "|", "%7C")

// FirstOf counts a request by the first of the keys that it has, such as the user if there is one, else the address.
// Any error other than [ErrNoKey] ends the search.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		var err error = &keyError{why: "FirstOf has no key functions", is: []error{ErrNoKey}}
		for _, of := range keys {
			var key string
			if key, err = of(r); !errors.Is(err, ErrNoKey) {
				return key, err
			}
		}
		return "", err
	}
}

// Hashed counts requests by a hash of the key, 43 characters, and the database stores only the hash. For API keys,
// which nobody can guess, the secret may be nil. For guessable keys, such as addresses of people, use a secret of at
// least 16 random bytes, the same in all instances: the hash is an HMAC-SHA256.
func Hashed(key KeyFunc, secret []byte) KeyFunc {
	secret = bytes.Clone(secret)
	return func(r *http.Request) (string, error) {
		plain, err := key(r)
		if err != nil || plain == "" {
			return "", err
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(plain))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
	}
}
