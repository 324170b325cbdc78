package grpclimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a call through, from the context of its handler: that of the nearest
// interceptor, and with [Config].Requests the first. ok is false if there is none, because the call was
// skipped. A handler can give tokens back by it, or charge what the call really cost:
//
//	d, _ := grpclimit.Decision(ctx)
//	_, err := limiter.Settle(context.WithoutCancel(ctx), d, tokens) // also if the client has gone
//
// Do one of them, once, and not together with a [Config].Refund that gives back for the same call: its tokens
// would come back twice. What Config.OnError of the Limiter let through (Source is [pglimit.FromFallback]) was
// not taken: there Settle and Refund return an error. Of a stream, the decision is that of its opening.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return passed.Decision(ctx) }

// Decisions returns those of all limits that let a call through, from the context of its handler: of interceptors in
// a chain the first one's first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if there
// are none. If the call cost the same of each, one round trip settles all of them:
//
//	ds := grpclimit.Decisions(ctx)
//	_, err := limiter.Settle(ctx, ds[0], tokens, ds[1:]...)
func Decisions(ctx context.Context) []pglimit.Decision { return passed.Decisions(ctx) }

// Failed says, in the context of the handler, that the call failed, although it ends with OK: [OnSuccess] keeps its
// tokens, and [OnFailure] gives them back. It is for a login, say, whose answer has a field that says no. Call it
// before the handler returns. If the call was not limited, it does nothing.
func Failed(ctx context.Context) { passed.Fail(ctx) }

// limited is a stream whose context has the decisions of its opening.
type limited struct {
	grpc.ServerStream
	ctx context.Context
}

func (l *limited) Context() context.Context { return l.ctx }
