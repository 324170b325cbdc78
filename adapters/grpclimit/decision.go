package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a call through, from the context of its handler: that of the nearest
// interceptor, and with [Config].Requests the first. ok is false if there is none, because the call was
// skipped. A handler can tell its client what is left, for instance. To charge what the call really cost, use [Settle]. Give
// nothing back by the decision, with Settle or Refund of the Limiter, where [Config].Refund may do so too: the tokens
// would come back twice. Of a stream, the decision is that of its opening.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return passed.Decision(ctx) }

// Decisions returns those of all limits that let a call through, from the context of its handler: of interceptors in
// a chain the first one's first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if there
// are none.
func Decisions(ctx context.Context) []pglimit.Decision { return passed.Decisions(ctx) }

// Settle charges what the call really cost in place of its Cost, of every limit of the nearest interceptor, in one round
// trip: see [pglimit.Limiter.Settle]. An actual cost of 0 gives everything back. It works also when the client has gone:
//
//	charged, err := grpclimit.Settle(ctx, tokens)
//
// Call it once, in the context of the handler and before that returns. [Config].Refund is not asked then, whatever the error is. Of
// a stream, it settles the opening. If the call was not limited, or Config.OnError of the Limiter let it through, it does
// nothing: there is nothing to settle.
func Settle(ctx context.Context, actual int64) (charged pglimit.Decision, err error) {
	charged, err = passed.Settle(ctx, actual)
	if err != nil {
		err = fmt.Errorf("grpclimit: %w", err)
	}
	return charged, err
}

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
