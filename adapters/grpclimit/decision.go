package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a call through, from the context of its handler: that of the nearest
// interceptor, and with [Config].Requests the first. ok is false if there is none, because the call was skipped. For a
// stream, it is the decision of its opening. A handler can use it to tell its client what is left.
//
// To charge what the call really cost, use [Settle]. Do not pass the decision to Settle or Refund of the Limiter if
// [Config].Refund may refund it too: the tokens would come back twice.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return admission.Decision(ctx) }

// Decisions returns the decisions of all limits that let a call through, from the context of its handler: of chained
// interceptors the first one's first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if
// there are none.
func Decisions(ctx context.Context) []pglimit.Decision { return admission.Decisions(ctx) }

// Settle charges what the call really cost instead of its Cost, in every limit of the nearest interceptor, in one round
// trip: see [pglimit.Limiter.Settle]. An actual cost of 0 returns everything. It works even if the client has gone:
//
//	charged, err := grpclimit.Settle(ctx, tokens)
//
// Call it once, in the context of the handler and before the handler returns. [Config].Refund is then not called,
// whatever the error. For a stream, it settles the opening. If the call was not limited, or if Config.OnError of the
// Limiter let it through, Settle does nothing.
func Settle(ctx context.Context, actual int64) (charged pglimit.Decision, err error) {
	charged, err = admission.Settle(ctx, actual)
	if err != nil {
		err = fmt.Errorf("grpclimit: %w", err)
	}
	return charged, err
}

// Failed marks the call as failed, although it ends with OK: [OnSuccess] keeps its tokens, and [OnFailure] returns
// them. Use it, for example, for a login whose answer has a field that says no. Call it before the handler returns. If
// the call was not limited, it does nothing.
func Failed(ctx context.Context) { admission.Fail(ctx) }

// limited is a stream whose context has the decisions of its opening.
type limited struct {
	grpc.ServerStream
	ctx context.Context
}

func (l *limited) Context() context.Context { return l.ctx }
