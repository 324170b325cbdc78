// Package httplimit limits the requests of an HTTP server with a pglimit.Limiter. It is a
// middleware of the usual shape, for net/http, chi and whatever takes that shape:
//
//	limit := httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{Count: 1})})
//	http.ListenAndServe(":8080", limit(mux))
//
// A request over the limit is answered with 429 Too Many Requests, Retry-After, and a problem
// (RFC 9457) as JSON; if no decision is known, with 503 Service Unavailable. Every answer that
// was decided has the fields RateLimit and RateLimit-Policy of
// draft-ietf-httpapi-ratelimit-headers-11, or X-RateLimit-*, see [Headers].
//
// Whom a request is counted for is up to [Config].Key: [Subject], [ClientIP], [Header], [Route],
// [Constant], a function of yours, or several of them by [Join] and [FirstOf]. There is no
// default: a key that clients choose limits nobody, and one that they share lets one of them lock
// out all others.
package httplimit
