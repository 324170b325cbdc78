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

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// ClientInterceptor keeps to the limit of somebody else's API, in all processes together. Its methods Unary and Stream
// are interceptors of a client:
//
//	turns := &grpclimit.ClientInterceptor{Limiter: limiter}
//	conn, err := grpc.NewClient(target, credentials,
//		grpc.WithChainUnaryInterceptor(turns.Unary), grpc.WithChainStreamInterceptor(turns.Stream))
//
// Each call waits for its turn with [pglimit.Limiter.Wait], and is then sent. If the turn would come after the call's
// deadline, or after Config.MaxWait of the Limiter, the call fails at once with RESOURCE_EXHAUSTED, and the error
// satisfies errors.Is(err, [pglimit.ErrWaitTooLong]). One of the two must be set. A call that was sent has used its
// token, whatever became of it. A stream takes one token, when it is opened.
//
// If a call ends with RESOURCE_EXHAUSTED or UNAVAILABLE and the detail google.rpc.RetryInfo, the key is paused with
// [pglimit.Limiter.Pause]: no process sends a call with this key before the delay is over.
//
// Retries of a service config happen behind the interceptor: they take no turn, and it sees only how the last one ends.
//
// Limiter is required. The zero value of every other field is its default. Do not change the fields after the first
// call. A ClientInterceptor is safe for concurrent use.
type ClientInterceptor struct {
	// Limiter, MaxPause and Logger: as of [httplimit.Transport].
	Limiter  *pglimit.Limiter
	MaxPause time.Duration
	Logger   *slog.Logger

	// Key says which calls share a bucket, and a pause: those that the server counts together. [Constant], [Method], or
	// your own function. Nil: the target of the connection, such as "target:dns:///api.example.com".
	Key KeyFunc

	client admission.Client
}

// Unary is a [grpc.UnaryClientInterceptor].
func (c *ClientInterceptor) Unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	key, err := c.turn(ctx, Call{method, request}, conn)
	if err != nil {
		return err
	}
	err = invoker(ctx, method, request, reply, conn, options...)
	c.pause(ctx, key, err)
	return err
}

// Stream is a [grpc.StreamClientInterceptor].
func (c *ClientInterceptor) Stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	key, err := c.turn(ctx, Call{Method: method}, conn)
	if err != nil {
		return nil, err
	}
	stream, err := streamer(ctx, desc, conn, method, options...)
	if err != nil {
		c.pause(ctx, key, err)
		return nil, err
	}
	return &pausing{stream, func(err error) { c.pause(ctx, key, err) }}, nil
}

// pausing is a stream that pauses the key if it ends so.
type pausing struct {
	grpc.ClientStream
	ended func(error)
}

// RecvMsg receives a message, or how the stream ended. Every client calls it until then.
func (p *pausing) RecvMsg(message any) error {
	err := p.ClientStream.RecvMsg(message)
	if err != nil {
		p.ended(err)
	}
	return err
}

// turn waits for the call's turn.
func (c *ClientInterceptor) turn(ctx context.Context, call Call, conn *grpc.ClientConn) (key string, err error) {
	if c.Key == nil {
		key = "target:" + conn.Target()
	} else if key, err = c.Key(ctx, call); err != nil {
		return "", &notSentError{fmt.Errorf("ClientInterceptor.Key: %w", err), codes.Internal}
	}
	if err = c.client.Wait(ctx, c.Limiter, key); err == nil {
		return key, nil
	}
	code := StatusOf(err).Code()
	switch gone := ctx.Err(); {
	case errors.Is(err, pglimit.ErrWaitTooLong):
		code = codes.ResourceExhausted
	case errors.Is(err, admission.ErrNoLimiter):
		code = codes.Internal
	case gone != nil:
		code = status.FromContextError(gone).Code()
	}
	return "", &notSentError{err, code}
}

// pause the key if the server asks for it.
func (c *ClientInterceptor) pause(ctx context.Context, key string, ended error) {
	s := status.Convert(ended)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return
	}
	for _, detail := range s.Details() {
		if info, is := detail.(*errdetails.RetryInfo); is && info.GetRetryDelay().AsDuration() > 0 {
			asked := info.GetRetryDelay().AsDuration()
			c.client.Pause(ctx, c.Limiter, key, asked, c.MaxPause, c.Logger, "grpclimit: not paused")
		}
	}
}

// notSentError says why a call was not sent, with a code.
type notSentError struct {
	error
	code codes.Code
}

func (e *notSentError) Error() string              { return "grpclimit: not sent: " + e.error.Error() }
func (e *notSentError) Unwrap() error              { return e.error }
func (e *notSentError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }
