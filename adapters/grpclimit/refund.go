package grpclimit

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
)

// refundTimeout ends a refund if the Limiter has NoTimeout: nobody waits without end.
const refundTimeout = 5 * time.Second

// pass the call on. What was taken for it is given back if Config.Refund says so.
func (i *Interceptor) pass(ctx context.Context, call Call, taken []pglimit.Decision, handler func() error) error {
	if i.config.Refund == nil || fromFallback(taken) { // what a fallback granted was not taken
		return handler()
	}
	code := codes.Internal
	defer func() { // also if the handler panics, which goes on behind this
		if gone := ctx.Err(); gone != nil && code != codes.OK { // the handler failed of that, with any code
			code = codeOf(gone)
		}
		if !passed.Settled(ctx) && i.config.Refund(ctx, call, code) {
			i.giveBack(ctx, call, taken)
		}
	}()
	err := handler()
	code = codeOf(err)
	return err
}

// giveBack also if the client has gone, as Limiter.Refund does: that is when calls fail.
func (i *Interceptor) giveBack(ctx context.Context, call Call, taken []pglimit.Decision) {
	ctx, cancel := context.WithTimeout(ctx, refundTimeout)
	defer cancel()
	for _, d := range taken {
		if err := i.limiter.Refund(ctx, d, d.Granted); err != nil {
			i.unpaid.Add(ctx, i.config.Logger, "grpclimit: tokens not given back", err, "method", call.Method)
		}
	}
}

// codeOf is the code that the server makes of a handler's error.
func codeOf(err error) codes.Code {
	if s, is := status.FromError(err); is {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}

// OnFailure, as [Config].Refund, gives the tokens back of calls that ended with an error, or by [Failed]: only
// successes count. Canceled and DeadlineExceeded count too, because they are up to the client. Do
// not use it for streams whose clients can make them fail after they got what they wanted, by a
// message that is not valid, for instance.
func OnFailure(ctx context.Context, _ Call, code codes.Code) bool {
	return !succeeded(ctx, code) && ctx.Err() == nil && code != codes.Canceled && code != codes.DeadlineExceeded
}

// OnSuccess, as [Config].Refund, gives the tokens back of calls that ended with OK, and without [Failed]: only
// failures count, such as wrong passwords. The token is taken while the call runs: the burst is also how
// many may run at once. Calls that their client has cancelled, or whose deadline is over, count too, whatever the
// handler returned: it may have stopped before it knew.
func OnSuccess(ctx context.Context, _ Call, code codes.Code) bool {
	return succeeded(ctx, code) && ctx.Err() == nil
}

func succeeded(ctx context.Context, code codes.Code) bool {
	return code == codes.OK && !passed.Failed(ctx)
}

// OnCodes, as [Config].Refund, gives the tokens back of calls that ended with one of the codes, such
// as codes.Internal and codes.Unavailable. A client that can bring about one of them has no limit:
// Canceled and DeadlineExceeded whenever it likes, and on a stream that it sends on also what Recv
// returns, which is Internal for a malformed message and ResourceExhausted for one too large.
func OnCodes(uncounted ...codes.Code) func(context.Context, Call, codes.Code) bool {
	uncounted = slices.Clone(uncounted)
	return func(_ context.Context, _ Call, code codes.Code) bool { return slices.Contains(uncounted, code) }
}
