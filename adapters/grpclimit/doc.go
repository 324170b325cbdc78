// Package grpclimit limits the calls of a gRPC server with a pglimit.Limiter. [New] makes the
// interceptors:
//
//	limits, err := grpclimit.New(limiter, grpclimit.Config{Key: grpclimit.Subject("user", userOf)})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, limits.Unary),
//		grpc.ChainStreamInterceptor(authenticateStream, limits.Stream),
//	)
//
// A call over the limit ends with RESOURCE_EXHAUSTED, before its handler runs. The status has
// the details RetryInfo and QuotaFailure. The trailer grpc-retry-pushback-ms tells a client with a
// retry policy when to retry, or not to. If no decision is known, the call ends with UNAVAILABLE,
// unless Config.OnError of the Limiter grants it.
//
// Whom a call is counted for is up to [Config].Key: [Subject], [PeerIP], [ClientIP], [Metadata], [Method],
// [Constant], a function of yours, or several of them by [Join] and [FirstOf]. There is no
// default: a key that clients choose limits nobody, and one that they share lets one of them lock
// out all others. Package httplimit makes the same keys of HTTP requests, so that both can share a
// limit.
package grpclimit
