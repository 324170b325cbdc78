package grpclimit

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/ratelimit/pglimit"
)

// Errors that Config.Failed may get, besides those of the Limiter and of your own key function. Test them with
// errors.Is. Your key function may return ErrNoKey too.
var (
	// ErrNoKey means that the call has no such key. [FirstOf] then tries the next.
	ErrNoKey = errors.New("grpclimit: the call has no key")

	// ErrFallback means that no decision is known, and that Config.OnError of the Limiter denied the call.
	ErrFallback = errors.New("grpclimit: no decision is known, and Config.OnError of the limiter denied the call")
)

// usageError is a fault of this server: of its key function or its configuration.
type usageError struct{ err error }

func (e *usageError) Error() string { return "grpclimit: " + e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// fallbackError is an ErrFallback that says when to try again.
type fallbackError struct{ retryAfter time.Duration }

func (*fallbackError) Error() string { return ErrFallback.Error() }
func (*fallbackError) Unwrap() error { return ErrFallback }

// StatusOf is the status that an error ends a call with:
//
//   - the gRPC status that the error is or wraps, such as one that Config.Key returned;
//   - INVALID_ARGUMENT if the key is longer than [pglimit.MaxKeyBytes], not UTF-8 or has a NUL byte, and if the call
//     costs more than the burst, so that it could never be granted;
//   - INTERNAL for any other error of Config.Key, an empty key, a cost below one, negative Tokens, and other faults of
//     the server's configuration;
//   - UNAVAILABLE for everything else: no decision is known.
//
// A call that its client has cancelled, or whose deadline is over, ends with CANCELLED or DEADLINE_EXCEEDED instead.
func StatusOf(err error) *status.Status {
	var chosen interface{ GRPCStatus() *status.Status }
	var request *pglimit.RequestError
	var fallback *fallbackError
	switch {
	case errors.As(err, &chosen) && chosen.GRPCStatus().Code() != codes.OK:
		return chosen.GRPCStatus()
	case errors.As(err, new(*usageError)):
	case errors.As(err, &request) && request.Field == "Key":
		return status.New(codes.InvalidArgument, "the key that the call is limited by is too long, not UTF-8, or has a NUL byte")
	case request != nil && request.Field == "Tokens":
		return status.New(codes.InvalidArgument, "the call costs more than its limit ever grants at once")
	case request != nil, errors.As(err, new(*pglimit.RuleError)), errors.As(err, new(*pglimit.LimitError)), errors.Is(err, errors.ErrUnsupported):
	case errors.As(err, &fallback):
		return withDetails(status.New(codes.Unavailable, unknown), &errdetails.RetryInfo{RetryDelay: durationpb.New(fallback.retryAfter)})
	default:
		return status.New(codes.Unavailable, unknown)
	}
	return status.New(codes.Internal, "the limits of calls are not set up properly: the server's log says more")
}

const unknown = "it is not known at present whether the call is within its limits"
