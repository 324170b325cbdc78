package httplimit

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// Transport is an [http.RoundTripper] that keeps to the limit of somebody else's API, in all processes together:
//
//	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter}, Timeout: 30 * time.Second}
//
// Each request waits for its turn with [pglimit.Limiter.Wait], and is then sent. If the turn would come after the
// deadline of the request's context, which includes Client.Timeout, or after Config.MaxWait of the Limiter, the request
// fails at once with an error that satisfies errors.Is(err, [pglimit.ErrWaitTooLong]). One of the two must be set. A
// request that was sent has used its token, whatever became of it. A redirect is another request.
//
// If the server asks for a pause, the key is paused with [pglimit.Limiter.Pause]: no process sends a request with this
// key before the pause has ended. A server asks by
//
//   - Retry-After, in seconds or as a date, on a response with the status 429, 503 or 403 (as GitHub's);
//   - RateLimit of draft-ietf-httpapi-ratelimit-headers-11, with r=0 and t, on any response: also a successful one may
//     have used the last of the quota;
//   - X-RateLimit-Remaining: 0 and X-RateLimit-Reset, a Unix time, on any response.
//
// Retry-After has precedence over the others; of several values the latest counts. Times are compared with the
// response's Date, so clocks may differ. Malformed fields, and times in the past, are ignored.
//
// Limiter is required. The zero value of every other field is its default. Do not change the fields after the first
// request. A Transport is safe for concurrent use.
type Transport struct {
	// Limiter has the limit. It must be able to Wait and to Pause, as with the strategy TokenBucket, without
	// Config.Block and without a calendar window.
	Limiter *pglimit.Limiter

	// Base sends the requests. Nil: [http.DefaultTransport].
	Base http.RoundTripper

	// Key says which requests share a bucket, and a pause: those that the server counts together. [Constant], [Header]
	// for an API key (with [Hashed], because keys are stored), or your own function. Nil: the host and port of the URL,
	// such as "host:api.example.com".
	Key KeyFunc

	// Retry sends a request again, once, after a response 429, 503 or 403 that asked for a pause. The request waits for
	// another turn, which comes after the pause. If that would be too late, or the pause failed, RoundTrip returns the
	// response. Only requests are sent again that are idempotent (GET, HEAD, OPTIONS, TRACE, PUT, DELETE, or with an
	// Idempotency-Key) and whose body is empty or has a GetBody, as [http.NewRequest] sets it for bodies in memory.
	Retry bool

	// MaxPause bounds what a server can ask for. Zero: an hour.
	MaxPause time.Duration

	// Logger gets pauses that failed, for instance because the database is down: one every ten seconds at most. The
	// response is returned all the same. Nil: slog.Default().
	Logger *slog.Logger

	client admission.Client
}

var _ http.RoundTripper = (*Transport)(nil)

// RoundTrip waits for the request's turn and sends it, as described at [Transport].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.turn(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // which a RoundTripper always does
		}
		return nil, fmt.Errorf("httplimit: not sent: %w", err)
	}
	response, paused, err := t.send(r, key)
	if err != nil || !paused || !t.Retry || !refused(response.StatusCode) || !canReplay(r) {
		return response, err
	}
	hold(response)
	if err := t.client.Wait(r.Context(), t.Limiter, key); err != nil {
		return response, nil //nolint:nilerr // there is no second try
	}
	again := r.WithContext(r.Context()) // a copy
	if r.GetBody != nil {
		if again.Body, err = r.GetBody(); err != nil {
			return response, nil //nolint:nilerr // there is no second try
		}
	}
	_ = response.Body.Close()
	response, _, err = t.send(again, key)
	return response, err
}

// turn waits for the request's turn.
func (t *Transport) turn(r *http.Request) (key string, err error) {
	if t.Key == nil {
		key = "host:" + strings.ToLower(r.URL.Host)
	} else if key, err = t.Key(r); err != nil {
		return "", fmt.Errorf("Transport.Key: %w", err)
	}
	return key, t.client.Wait(r.Context(), t.Limiter, key)
}

// send the request, and pause the key if the server asks for it. paused: it did, and the key is paused.
func (t *Transport) send(r *http.Request, key string) (response *http.Response, paused bool, err error) {
	response, err = cmp.Or(t.Base, http.DefaultTransport).RoundTrip(r)
	if err != nil {
		return response, false, err
	}
	if pause := pauseOf(response.StatusCode, response.Header, time.Now()); pause > 0 {
		paused = t.client.Pause(r.Context(), t.Limiter, key, pause, t.MaxPause, t.Logger, "httplimit: not paused")
	}
	return response, paused, nil
}

// canReplay says whether the request can be sent twice.
func canReplay(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// maxHeld is how much of a body is read to free its connection. Bodies of refusals are short.
const maxHeld = 64 << 10

// hold reads the body of a response that may still be returned, so that its connection is free while the request waits.
// If the body is longer than maxHeld, the connection stays busy.
func hold(response *http.Response) {
	if response.Body == nil { // which http.Client allows
		response.Body = http.NoBody
	}
	head, _ := io.ReadAll(io.LimitReader(response.Body, maxHeld)) // the next Read has the error again
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), response.Body), response.Body}
}
