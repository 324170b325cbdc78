// Package httplimit limits the requests of an HTTP server with a pglimit.Limiter. It is a middleware for net/http, chi
// and everything else that takes a func(http.Handler) http.Handler:
//
//	limit := httplimit.New(limiter, httplimit.Config{Key: httplimit.ClientIP(httplimit.Proxies{Count: 1})})
//	http.ListenAndServe(":8080", limit(mux))
//
// A request over the limit gets 429 Too Many Requests, Retry-After, and a problem (RFC 9457) as JSON. If no decision is
// known, it gets 503 Service Unavailable. Every answer with a decision has the fields RateLimit and RateLimit-Policy of
// draft-ietf-httpapi-ratelimit-headers-11, or X-RateLimit-*, see [Headers].
//
// [Config].Key says whom a request is counted for: [Subject], [ClientIP], [Header], [Route], [Constant], your own
// function, or several of them with [Join] and [FirstOf]. There is no default: a key that clients choose limits nobody,
// and a key that all clients share lets one of them lock out the others.
package httplimit
