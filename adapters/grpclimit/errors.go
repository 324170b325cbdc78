package grpclimit

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/semaphore"
)

// Errors that Config.Failed may get, besides those of the Limiter and of your own key function. Test them with
// errors.Is. Your key function may return ErrNoKey too.
var (
	// ErrNoKey means that the call has no such key. [FirstOf] then tries the next.
	ErrNoKey = admission.ErrNoKey

	// ErrFallback means that no decision is known, and that Config.OnError of the Limiter denied the call.
	ErrFallback = admission.ErrFallback
)

// fallbackError is an ErrFallback that says when to try again.
type fallbackError struct{ retryAfter time.Duration }

func (*fallbackError) Error() string { return ErrFallback.Error() }
func (*fallbackError) Unwrap() error { return ErrFallback }

// StatusOf is the status that an error ends a call with:
//
//   - the gRPC status that the error is or wraps, such as one that Config.Key returned;
//   - INVALID_ARGUMENT if the key of an interceptor is longer than [pglimit.MaxKeyBytes], not UTF-8 or has a NUL byte, and
//     if the call costs more than the burst, so that it could never be granted;
//   - INTERNAL for any other error of Config.Key, an empty key, a cost below one, negative Tokens, and other faults of
//     the server's configuration;
//   - UNAVAILABLE for everything else: no decision is known, or no place in a semaphore is free.
//
// A call that its client has cancelled, or whose deadline is over, ends with CANCELLED or DEADLINE_EXCEEDED instead.
func StatusOf(err error) *status.Status {
	var chosen interface{ GRPCStatus() *status.Status }
	if errors.As(err, &chosen) && chosen.GRPCStatus().Code() != codes.OK {
		return chosen.GRPCStatus()
	}
	switch fault := admission.FaultOf(err); {
	case fault == admission.OfConfig:
		return status.New(codes.Internal, "the limits of calls are not set up properly: the server's log says more")
	case errors.Is(err, admission.ErrBadRequest):
		return status.New(codes.InvalidArgument,
			"the key that the call is limited by is too long, not UTF-8, or has a NUL byte")
	case fault == admission.OfClient:
		return status.New(codes.InvalidArgument, "the call costs more than its limit ever grants at once")
	case errors.Is(err, semaphore.ErrFull):
		return tryAgain("too many calls are being served", time.Second)
	}
	const unknown = "it is not known at present whether the call is within its limits"
	if fallback := (*fallbackError)(nil); errors.As(err, &fallback) {
		return tryAgain(unknown, fallback.retryAfter)
	}
	return status.New(codes.Unavailable, unknown)
}

func tryAgain(message string, after time.Duration) *status.Status {
	return withDetails(status.New(codes.Unavailable, message), &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
}
