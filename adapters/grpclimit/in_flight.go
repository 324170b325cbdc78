package grpclimit

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/semaphore"
)

// InFlight says how [MaxInFlight] limits.
type InFlight struct {
	// Key says whom a call is counted for; Constant("all") counts all calls together. Required.
	Key KeyFunc

	// Wait lets calls wait in line for a place, as long as MaxWait of the semaphore's Config and the client allow.
	// False: a call without a place is rejected at once.
	Wait bool

	// Failed can choose another error than the usual one. err is semaphore.ErrFull, or an error of Key or of the
	// database. Nil, or if it returns nil: StatusOf the error.
	Failed func(ctx context.Context, call Call, err error) error

	// Logger gets failures other than semaphore.ErrFull. Nil: slog.Default().
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
// to the places of the semaphore. Others end with UNAVAILABLE. A call holds its place until its handler ends, also by a
// panic or because the client has gone; a stream holds it until it ends. If the place is lost (see [semaphore.Permit]),
// the call's context is cancelled.
//
// Chain it before the interceptor of [New]: a call without a place then spends no token.
func MaxInFlight(places *semaphore.Semaphore, config InFlight) (*InFlightInterceptor, error) {
	if places == nil || config.Key == nil {
		return nil, errors.New("grpclimit: MaxInFlight needs a semaphore and InFlight.Key")
	}
	fail := newInterceptor(nil, Config{Failed: config.Failed, Logger: config.Logger})
	return &InFlightInterceptor{places, config, fail}, nil
}

// Unary is a [grpc.UnaryServerInterceptor].
func (i *InFlightInterceptor) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	permit, err := i.acquire(ctx, Call{Method: info.FullMethod, Message: request})
	if err != nil {
		return nil, err
	}
	defer permit.Release(ctx) //nolint:errcheck // the place comes back with the TTL
	return handler(permit.Context(), request)
}

// Stream is a [grpc.StreamServerInterceptor].
func (i *InFlightInterceptor) Stream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	permit, err := i.acquire(stream.Context(), Call{Method: info.FullMethod})
	if err != nil {
		return err
	}
	defer permit.Release(stream.Context()) //nolint:errcheck // the place comes back with the TTL
	return handler(server, &limited{stream, permit.Context()})
}

// acquire a place for the call. The error is what the call ends with.
func (i *InFlightInterceptor) acquire(ctx context.Context, call Call) (permit *semaphore.Permit, err error) {
	key, err := admission.Key(i.config.Key(ctx, call))
	if err == nil {
		permit, err = admission.Place(ctx, i.places, key, i.config.Wait)
	}
	if err != nil {
		return nil, i.fail.fail(ctx, call, err)
	}
	return permit, nil
}
