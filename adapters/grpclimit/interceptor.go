package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/internal/admission"
	"github.com/pglimit/ratelimit/pglimit"
)

// Interceptor limits calls. Make one with [New]. Its methods Unary and Stream are interceptors of
// a server, or of several, which then share the limit. It is safe for concurrent use.
type Interceptor struct {
	config Config
	limits admission.Limits
}

// New makes an Interceptor. The error says that the limiter is nil, that fields of the config do not go together, or
// that the limiter's strategy cannot do what they ask.
func New(limiter *pglimit.Limiter, config Config) (*Interceptor, error) {
	i := newInterceptor(limiter, config)
	i.config.MaxPushback = cmp.Or(config.MaxPushback, defaultMaxPushback)
	if err := i.limits.Check(admission.Uses{
		Key: config.Key != nil, Limit: config.Limit != nil, Requests: config.Requests != nil, Refund: config.Refund != nil,
	}); err != nil {
		return nil, err
	}
	return i, nil
}

func newInterceptor(limiter *pglimit.Limiter, config Config) *Interceptor {
	return &Interceptor{config: config, limits: admission.Limits{
		Limiter: limiter, Logger: config.Logger, Adapter: "grpclimit",
	}}
}

// Unary is a [grpc.UnaryServerInterceptor].
func (i *Interceptor) Unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (response any, err error) {
	call := Call{Method: info.FullMethod, Message: request}
	if i.skips(ctx, call) {
		return handler(ctx, request)
	}
	taken, err := i.take(ctx, call, i.config.MaxPushback)
	if err != nil {
		return nil, err
	}
	ctx = admission.With(ctx, i.limits.Limiter, taken)
	err = i.pass(ctx, call, taken, func() (err error) {
		response, err = handler(ctx, request)
		return err
	})
	return response, err
}

// Stream is a [grpc.StreamServerInterceptor]. It charges the opening of the stream and, with Config.PerMessage, each
// message from the client.
func (i *Interceptor) Stream(
	server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	ctx, call := stream.Context(), Call{Method: info.FullMethod}
	if i.skips(ctx, call) {
		return handler(server, stream)
	}
	taken, err := i.take(ctx, call, i.config.MaxPushback)
	if err != nil {
		return err
	}
	ctx = admission.With(ctx, i.limits.Limiter, taken)
	stream = &limited{stream, ctx}
	if i.config.PerMessage && info.IsClientStream {
		stream = &messages{ServerStream: stream, interceptor: i, method: info.FullMethod}
	}
	return i.pass(ctx, call, taken, func() error { return handler(server, stream) })
}

func (i *Interceptor) skips(ctx context.Context, call Call) bool {
	return i.config.Skip != nil && i.config.Skip(ctx, call)
}

// messages charges what the client sends on its stream.
type messages struct {
	grpc.ServerStream
	interceptor *Interceptor
	method      string
	ended       error // as RecvMsg, it is used by one goroutine at a time
}

// RecvMsg receives a message and takes its tokens. After a denial the stream gives no more.
func (m *messages) RecvMsg(message any) error {
	if m.ended != nil {
		return m.ended
	}
	if err := m.ServerStream.RecvMsg(message); err != nil {
		return err
	}
	// No pushback: a retry would send all messages again, and pay for them again.
	_, m.ended = m.interceptor.take(m.Context(), Call{Method: m.method, Message: message}, -1)
	return m.ended
}

// take the call's tokens. The error is what the call ends with.
func (i *Interceptor) take(ctx context.Context, call Call, maxPushback time.Duration) ([]pglimit.Decision, error) {
	answer, err := i.decide(ctx, call)
	switch {
	case err != nil:
		return nil, i.fail(ctx, call, err)
	case answer.Allowed:
		return answer.Decisions, nil
	}
	setPushback(ctx, wholeMillis(answer.RetryAfter), maxPushback)
	if admission.Fallback(answer.Decisions) {
		return nil, i.fail(ctx, call, &fallbackError{wholeMillis(answer.RetryAfter)})
	}
	return nil, i.deny(ctx, call, answer)
}

// decide asks the limiter.
func (i *Interceptor) decide(ctx context.Context, call Call) (none pglimit.Group, err error) {
	key, err := admission.Key(i.config.Key(ctx, call))
	if err != nil {
		return none, err
	}
	cost := int64(1)
	if i.config.Cost != nil {
		if cost, err = admission.Cost(i.config.Cost(ctx, call)); err != nil {
			return none, err
		}
	}
	if i.config.Requests != nil {
		return i.limits.AskAll(ctx, i.config.Requests(ctx, call, key), cost)
	}
	request := pglimit.Request{Key: key, Tokens: cost}
	if i.config.Limit != nil {
		request.Limit = i.config.Limit(ctx, call)
	}
	return i.limits.Ask(ctx, request, nil)
}

// deny ends a call that is over the limit.
func (i *Interceptor) deny(ctx context.Context, call Call, answer pglimit.Group) error {
	denial := Denial{RetryAfter: wholeMillis(answer.RetryAfter)}
	for _, d := range answer.Decisions {
		if !d.Allowed {
			denial.Decisions = append(denial.Decisions, d)
		}
	}
	var err error
	if i.config.Denied != nil {
		err = i.config.Denied(ctx, call, denial)
	}
	if err == nil {
		err = denial.Status().Err()
	}
	return err
}

// fail ends a call of which no decision is known.
func (i *Interceptor) fail(ctx context.Context, call Call, err error) error {
	s := StatusOf(err)
	if gone := ctx.Err(); gone != nil { // the client has gone
		return status.FromContextError(gone).Err()
	}
	if s.Code() == codes.Internal || s.Code() == codes.Unavailable {
		i.limits.Undecided(ctx, err, "method", call.Method)
	}
	if i.config.Failed != nil {
		if chosen := i.config.Failed(ctx, call, err); chosen != nil {
			return chosen
		}
	}
	return s.Err()
}
