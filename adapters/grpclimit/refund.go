package grpclimit

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// pass calls the handler, and refunds what was taken if Config.Refund says so.
func (i *Interceptor) pass(ctx context.Context, call Call, taken []pglimit.Decision, handler func() error) error {
	if i.config.Refund == nil || admission.Fallback(taken) { // a fallback takes no tokens
		return handler()
	}
	code := codes.Internal
	defer func() { // also if the handler panics; the panic continues
		if gone := ctx.Err(); gone != nil && code != codes.OK { // the handler failed of that, with any code
			code = codeOf(gone)
		}
		if !admission.Settled(ctx) && i.config.Refund(ctx, call, code) {
			i.limits.GiveBack(ctx, taken, "method", call.Method)
		}
	}()
	err := handler()
	code = codeOf(err)
	return err
}

// codeOf is the code that the server makes of a handler's error.
func codeOf(err error) codes.Code {
	if s, is := status.FromError(err); is {
		return s.Code()
	}
	return status.FromContextError(err).Code()
}

// OnFailure is a [Config].Refund that returns the tokens of calls that ended with an error, or by [Failed]. Only
// successes count. Canceled and DeadlineExceeded count too, because clients can cause them. Do not use it for streams
// whose clients can make them fail after they got what they wanted, such as with an invalid message.
func OnFailure(ctx context.Context, _ Call, code codes.Code) bool {
	return !succeeded(ctx, code) && ctx.Err() == nil && code != codes.Canceled && code != codes.DeadlineExceeded
}

// OnSuccess is a [Config].Refund that returns the tokens of calls that ended with OK, and without [Failed]. Only
// failures count, such as wrong passwords. The token is held while the call runs, so the burst also bounds how many run
// at once. Calls that their client has cancelled, or whose deadline is over, count too, because the handler may have
// stopped before it knew.
func OnSuccess(ctx context.Context, _ Call, code codes.Code) bool {
	return succeeded(ctx, code) && ctx.Err() == nil
}

func succeeded(ctx context.Context, code codes.Code) bool {
	return code == codes.OK && !admission.Failed(ctx)
}

// OnCodes is a [Config].Refund that returns the tokens of calls that ended with one of the codes, such as
// codes.Internal and codes.Unavailable. A client that can cause one of them has no limit: Canceled and DeadlineExceeded
// at any time, and on a client stream also what Recv returns, which is Internal for a malformed message and
// ResourceExhausted for one that is too large.
func OnCodes(uncounted ...codes.Code) func(context.Context, Call, codes.Code) bool {
	uncounted = slices.Clone(uncounted)
	return func(_ context.Context, _ Call, code codes.Code) bool { return slices.Contains(uncounted, code) }
}
