package httplimit

import (
	"context"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a request through, from the context of the request: that of the nearest
// middleware around the handler, and with [Config].Requests the first. ok is false if there is none, because
// the request was skipped. A handler can give tokens back by it, or charge what the request really cost:
//
//	d, _ := httplimit.Decision(r.Context())
//	_, err := limiter.Settle(context.WithoutCancel(r.Context()), d, tokens) // also if the client has gone
//
// Do one of them, once, and not together with a [Config].Refund that gives back for the same request: its
// tokens would come back twice. What Config.OnError of the Limiter let through (Source is
// [pglimit.FromFallback]) was not taken: there Settle and Refund return an error.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return passed.Decision(ctx) }

// Decisions returns those of all limits that let a request through, from the context of the request: of nested
// middlewares the outermost first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if
// there are none. If the request cost the same of each, one round trip settles all of them:
//
//	ds := httplimit.Decisions(r.Context())
//	_, err := limiter.Settle(ctx, ds[0], tokens, ds[1:]...)
func Decisions(ctx context.Context) []pglimit.Decision { return passed.Decisions(ctx) }

// Failed says, in the context of the request, that it failed, whatever status it is answered with: [OnSuccess] keeps
// its tokens, and [OnFailure] gives them back. It is for a login form, say, that is shown again with 200:
//
//	httplimit.Failed(r.Context())
//
// Call it before the handler returns. If the request was not limited, it does nothing.
func Failed(ctx context.Context) { passed.Fail(ctx) }
