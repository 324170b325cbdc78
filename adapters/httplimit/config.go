package httplimit

import (
	"log/slog"
	"net/http"

	"github.com/pglimit/ratelimit/pglimit"
)

// Config of a middleware. Key is required. The zero value of every other field is its default. The functions are called
// concurrently.
type Config struct {
	// Key says whom a request is counted for: [Subject], [ClientIP], [Header], [Route], [Constant], [Join], [FirstOf],
	// [Hashed], [Unauthorized], or your own function. Requests with the same key share a bucket. An error or an empty
	// key is answered by Failed: no request passes without a key.
	Key KeyFunc

	// Skip says which requests pass without a decision, such as health checks. Nil: none.
	Skip func(r *http.Request) bool

	// Cost is how many tokens a request takes, all or none. Nil: 1. A cost below 1 is an error, and so is a cost above
	// the Burst of the limit, which could never be granted. Failed answers both.
	Cost func(r *http.Request) int64

	// Limit is the limit of the request, such as that of the customer's plan. Nil, or the zero Limit, means the
	// Limiter's own. See [pglimit.Limiter.Do].
	Limit func(r *http.Request) pglimit.Limit

	// Requests asks for several limits, all or nothing: see [pglimit.Limiter.DoAll]. The key is that of Key. Each
	// request must have a Key. Zero Tokens means the Cost, never a peek; negative Tokens are an error. An empty Limiter
	// and Limit mean the Limiter's own. The strategy must support groups, as strategies.TokenBucket{} does, and the
	// Limiter must have no Block. Nil: one limit. With Requests, Limit must be nil.
	//
	//	func(r *http.Request, key string) []pglimit.Request {
	//		return []pglimit.Request{{Key: key}, {Limiter: "api/day", Key: key, Limit: pglimit.Per(1000, 24*time.Hour)}}
	//	}
	Requests func(r *http.Request, key string) []pglimit.Request

	// Refund says, after a request was answered with the status, whether its tokens are returned: [OnFailure],
	// [OnServerError], [OnSuccess], or your own function. See [Failed] for handlers that answer failures with 200. It
	// is not called if the handler used [Settle]. A request that panicked has the status that it had sent, or 500; a
	// hijacked connection has 101. The strategy must be a [pglimit.GiveBacker]. Nil: all requests count.
	//
	// A client can disconnect at any time. Handlers then fail, or stop without a status, and r.Context().Err() is
	// context.Canceled. If your own function refunds that, such clients have no limit.
	//
	// A refund is a round trip for each decision, after the handler has returned. A client that has the whole answer
	// has its tokens back, unless the handler sent a Content-Length and the whole body before it returned. The
	// RateLimit fields were sent before.
	Refund func(r *http.Request, status int) bool

	// Headers are the fields of every answer with a decision. Zero: Draft11.
	Headers Headers

	// Denied answers a request over the limit. Retry-After, Cache-Control and the fields of Headers are already set.
	// Nil: [WriteDenied].
	Denied func(w http.ResponseWriter, r *http.Request, denial Denial)

	// Failed answers a request without a known decision, or one that Config.OnError of the Limiter denied (then the
	// error is [ErrFallback]). Cache-Control is already set, and Retry-After if the status is 503. [StatusOf] is the
	// status for the error. Nil: [WriteFailed].
	Failed func(w http.ResponseWriter, r *http.Request, err error)

	// Logger gets the errors whose StatusOf is 500 or more, and refunds that failed: the first of each kind at once,
	// then at most one every ten seconds, with the number of those in between. Nil: slog.Default().
	Logger *slog.Logger
}

// Headers says which fields tell a client its limit. They are set on every answer with a decision, granted or denied,
// before the handler is called; never if no decision is known. Retry-After is set on every denial.
//
// Middlewares can be nested: fields of Draft11 are lists, to which each adds its own. Legacy shows the tightest limit:
// the one that denied, or the one with the fewest tokens left.
type Headers int

// The fields. With a limit of 10 per second, burst 20, and one token taken, after another client's
// answers:
//
//	Draft11  RateLimit-Policy: "api";q=20;w=2      20 at once, which come back in 2 s
//	         RateLimit: "api";r=19;t=2             19 left; all of them are back in 2 s
//	Legacy   X-RateLimit-Limit: 20
//	         X-RateLimit-Remaining: 19
//	         X-RateLimit-Reset: 1795383914         Unix time when the bucket is full, and no block is left
const (
	Draft11 Headers = iota // RateLimit and RateLimit-Policy of draft-ietf-httpapi-ratelimit-headers-11
	Legacy                 // X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset
	None                   // no fields
)
