// Package grpclimit limits the calls of a gRPC server with a pglimit.Limiter. [New] makes the interceptors:
//
//	limits, err := grpclimit.New(limiter, grpclimit.Config{Key: grpclimit.Subject("user", userOf)})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, limits.Unary),
//		grpc.ChainStreamInterceptor(authenticateStream, limits.Stream),
//	)
//
// A call over the limit ends with RESOURCE_EXHAUSTED, before its handler runs. The status has the details RetryInfo and
// QuotaFailure. The trailer grpc-retry-pushback-ms tells a client with a retry policy when to retry, or not to. If no
// decision is known, the call ends with UNAVAILABLE, unless Config.OnError of the Limiter grants it.
//
// [Config].Key says whom a call is counted for: [Subject], [PeerIP], [ClientIP], [Metadata], [Method], [Constant], your
// own function, or several of them with [Join] and [FirstOf]. There is no default: a key that clients choose limits
// nobody, and a key that all clients share lets one of them lock out the others. Package httplimit makes the same keys
// from HTTP requests, so that both can share a limit.
package grpclimit
