package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/ratelimit/semaphore"
)

// ErrBusy means that the maximum number of calls is being served. Its status is UNAVAILABLE, with a RetryInfo.
var ErrBusy error = busyError{}

type busyError struct{}

func (busyError) Error() string { return "grpclimit: too many calls are being served" }

// GRPCStatus is what the client is told.
func (e busyError) GRPCStatus() *status.Status {
	return withDetails(status.New(codes.Unavailable, "too many calls are being served"), &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
}

// InFlight says how [MaxInFlight] limits.
type InFlight struct {
	// Key says whom a call is counted for; Constant("all") counts all calls together. Required.
	Key KeyFunc

	// Wait lets calls wait in line for a place, as long as MaxWait of the semaphore's Config and the client allow.
	// False: a call without a place is rejected at once.
	Wait bool

	// Failed can choose another error than the usual one. err is ErrBusy, or an error of Key or of the database. Nil,
	// or if it returns nil: StatusOf the error.
	Failed func(ctx context.Context, call Call, err error) error

	// Logger gets failures other than ErrBusy. Nil: slog.Default().
	Logger *slog.Logger
}

// InFlightInterceptor limits how many calls are served at once. Make one with [MaxInFlight]. Its methods Unary and
// Stream are interceptors of a server. It is safe for concurrent use.
type InFlightInterceptor struct {
	places *semaphore.Semaphore
	config InFlight
	fail   *Interceptor // whose method it is
}

// MaxInFlight makes an interceptor that limits how many calls of a key are served at once, in all processes together,
// to the places of the semaphore. Others end with ErrBusy. A call holds its place until its handler ends, also by a
// panic or because the client has gone; a stream holds it until it ends. If the place is lost (see [semaphore.Permit]),
// the call's context is cancelled.
//
// Chain it before the interceptor of [New]: a call without a place then spends no token.
func MaxInFlight(places *semaphore.Semaphore, config InFlight) (*InFlightInterceptor, error) {
	if places == nil || config.Key == nil {
		return nil, errors.New("grpclimit: MaxInFlight needs a semaphore and InFlight.Key")
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return &InFlightInterceptor{places, config, &Interceptor{config: Config{Failed: config.Failed, Logger: config.Logger}}}, nil
}

// Unary is a [grpc.UnaryServerInterceptor].
func (i *InFlightInterceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	permit, err := i.acquire(ctx, Call{Method: info.FullMethod, Message: request})
	if err != nil {
		return nil, err
	}
	defer permit.Release(ctx) //nolint:errcheck // the place comes back with the TTL
	return handler(permit.Context(), request)
}

// Stream is a [grpc.StreamServerInterceptor].
func (i *InFlightInterceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	permit, err := i.acquire(stream.Context(), Call{Method: info.FullMethod})
	if err != nil {
		return err
	}
	defer permit.Release(stream.Context()) //nolint:errcheck // the place comes back with the TTL
	return handler(server, &limited{stream, permit.Context()})
}

// acquire a place for the call. The error is what the call ends with.
func (i *InFlightInterceptor) acquire(ctx context.Context, call Call) (permit *semaphore.Permit, err error) {
	key, err := i.config.Key(ctx, call)
	ok := true
	switch {
	case err != nil:
		err = &usageError{fmt.Errorf("InFlight.Key: %w", err)}
	case key == "":
		err = &usageError{errors.New("InFlight.Key: the key is empty: name whom the call is counted for, or return an error")}
	case i.config.Wait:
		permit, err = i.places.Acquire(ctx, key)
	default:
		permit, ok, err = i.places.TryAcquire(ctx, key)
	}
	if err == nil && ok {
		return permit, nil
	}
	if err == nil || errors.Is(err, semaphore.ErrFull) {
		err = ErrBusy
	}
	return nil, i.fail.fail(ctx, call, err)
}
