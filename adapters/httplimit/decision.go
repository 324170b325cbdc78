package httplimit

import (
	"context"
	"fmt"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// Decision returns the decision that let a request through, from the context of the request: that of the nearest
// middleware around the handler, and with [Config].Requests the first. ok is false if there is none, because
// the request was skipped. A handler can tell its client what is left, for instance. To charge what the request really
// cost, use [Settle]. Give nothing back by the decision, with Settle or Refund of the Limiter, where [Config].Refund may do so
// too: the tokens would come back twice.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) { return passed.Decision(ctx) }

// Decisions returns those of all limits that let a request through, from the context of the request: of nested
// middlewares the outermost first, and of [Config].Requests in their order. Each names its Limiter and Key. Nil if
// there are none.
func Decisions(ctx context.Context) []pglimit.Decision { return passed.Decisions(ctx) }

// Settle charges what the request really cost in place of its Cost, of every limit of the nearest middleware around the
// handler, in one round trip: see [pglimit.Limiter.Settle]. An actual cost of 0 gives everything back. It works also when
// the client has gone:
//
//	charged, err := httplimit.Settle(r.Context(), tokens)
//
// Call it once, and before the handler returns. [Config].Refund is not asked then, whatever the error is. If the request was not
// limited, or Config.OnError of the Limiter let it through, it does nothing: there is nothing to settle.
func Settle(ctx context.Context, actual int64) (charged pglimit.Decision, err error) {
	charged, err = passed.Settle(ctx, actual)
	if err != nil {
		err = fmt.Errorf("httplimit: %w", err)
	}
	return charged, err
}

// Failed says, in the context of the request, that it failed, whatever status it is answered with: [OnSuccess] keeps
// its tokens, and [OnFailure] gives them back. It is for a login form, say, that is shown again with 200:
//
//	httplimit.Failed(r.Context())
//
// Call it before the handler returns. If the request was not limited, it does nothing.
func Failed(ctx context.Context) { passed.Fail(ctx) }
