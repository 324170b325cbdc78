package httplimit

import (
	"context"
	"fmt"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a request through, from the request's context: that of the nearest middleware
// around the handler, and with [Config].Requests the first. ok is false if there is none, because the request was
// skipped. A handler can use it to tell its client what is left.
//
// To charge what the request really cost, use [Settle]. Do not pass the decision to Settle or Refund of the Limiter if
// [Config].Refund may refund it too: the tokens would come back twice.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return admission.Decision(ctx) }

// Decisions returns the decisions of all limits that let a request through, from the request's context: of nested
// middlewares the outermost first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if
// there are none.
func Decisions(ctx context.Context) []pglimit.Decision { return admission.Decisions(ctx) }

// Settle charges what the request really cost instead of its Cost, in every limit of the nearest middleware, in one
// round trip: see [pglimit.Limiter.Settle]. An actual cost of 0 returns everything. It works even if the client has
// gone:
//
//	charged, err := httplimit.Settle(r.Context(), tokens)
//
// Call it once, before the handler returns. [Config].Refund is then not called, whatever the error. If the request was
// not limited, or if Config.OnError of the Limiter let it through, Settle does nothing.
func Settle(ctx context.Context, actual int64) (charged pglimit.Decision, err error) {
	charged, err = admission.Settle(ctx, actual)
	if err != nil {
		err = fmt.Errorf("httplimit: %w", err)
	}
	return charged, err
}

// Failed marks the request as failed, whatever its status: [OnSuccess] keeps its tokens, and [OnFailure] returns them.
// Use it, for example, for a login form that is shown again with 200:
//
//	httplimit.Failed(r.Context())
//
// Call it before the handler returns. If the request was not limited, it does nothing.
func Failed(ctx context.Context) { admission.Fail(ctx) }
