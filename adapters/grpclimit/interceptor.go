package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/internal/failures"
	"github.com/pglimit/ratelimit/adapters/internal/passed"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Interceptor limits calls. Make one with [New]. Its methods Unary and Stream are interceptors of
// a server, or of several, which then share the limit. It is safe for concurrent use.
type Interceptor struct {
	config           Config
	limiter          *pglimit.Limiter
	failures, unpaid failures.Log // what the Logger was told of
}

// New makes an Interceptor. The error is that of [Config.Validate].
func New(limiter *pglimit.Limiter, config Config) (*Interceptor, error) {
	if err := config.Validate(limiter); err != nil {
		return nil, err
	}
	if config.MaxPushback == 0 {
		config.MaxPushback = defaultMaxPushback
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return &Interceptor{config: config, limiter: limiter}, nil
}

// Unary is a [grpc.UnaryServerInterceptor].
func (i *Interceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	call := Call{Method: info.FullMethod, Message: request}
	if i.skips(ctx, call) {
		return handler(ctx, request)
	}
	taken, err := i.take(ctx, call, i.config.MaxPushback)
	if err != nil {
		return nil, err
	}
	ctx = passed.With(ctx, i.limiter, taken)
	err = i.pass(ctx, call, taken, func() (err error) {
		response, err = handler(ctx, request)
		return err
	})
	return response, err
}

// Stream is a [grpc.StreamServerInterceptor]. It charges the opening of the stream and, with Config.PerMessage, each
// message from the client.
func (i *Interceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, call := stream.Context(), Call{Method: info.FullMethod}
	if i.skips(ctx, call) {
		return handler(server, stream)
	}
	taken, err := i.take(ctx, call, i.config.MaxPushback)
	if err != nil {
		return err
	}
	ctx = passed.With(ctx, i.limiter, taken)
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
	if fromFallback(answer.Decisions) {
		return nil, i.fail(ctx, call, &fallbackError{wholeMillis(answer.RetryAfter)})
	}
	return nil, i.deny(ctx, call, answer)
}

// decide asks the limiter.
func (i *Interceptor) decide(ctx context.Context, call Call) (pglimit.Group, error) {
	key, err := i.config.Key(ctx, call)
	if err != nil {
		return pglimit.Group{}, &usageError{fmt.Errorf("Config.Key: %w", err)}
	}
	if key == "" {
		return pglimit.Group{}, &usageError{errors.New("Config.Key: the key is empty: name whom the call is counted for, or return an error")}
	}
	cost := int64(1)
	if i.config.Cost != nil {
		if cost = i.config.Cost(ctx, call); cost < 1 {
			return pglimit.Group{}, &usageError{fmt.Errorf("Config.Cost is %d: it must be at least 1; calls that cost nothing are for Config.Skip", cost)}
		}
	}
	if i.config.Requests != nil {
		return i.decideAll(ctx, call, key, cost)
	}
	var limit pglimit.Limit // the limiter's own
	if i.config.Limit != nil {
		limit = i.config.Limit(ctx, call)
	}
	d, err := i.limiter.Do(ctx, pglimit.Request{Key: key, Limit: limit, Tokens: cost})
	return pglimit.Group{Allowed: d.Allowed, RetryAfter: d.RetryAfter, Decisions: []pglimit.Decision{d}}, err
}

// decideAll asks for several limits.
func (i *Interceptor) decideAll(ctx context.Context, call Call, key string, cost int64) (pglimit.Group, error) {
	requests := slices.Clone(i.config.Requests(ctx, call, key))
	if len(requests) == 0 {
		return pglimit.Group{}, &usageError{errors.New("Config.Requests returned none: calls without a limit are for Config.Skip")}
	}
	for n := range requests {
		if requests[n].Key == "" {
			return pglimit.Group{}, &usageError{fmt.Errorf("Config.Requests: the Key of request %d is empty: name whom it is counted for", n)}
		}
		if err := rate.CheckKey(requests[n].Key); err != nil {
			return pglimit.Group{}, fmt.Errorf("request %d: %w", n, err) // of the client's making, as Config.Key's would be
		}
		switch tokens := requests[n].Tokens; {
		case tokens == 0:
			requests[n].Tokens = cost
		case tokens < 0:
			return pglimit.Group{}, &usageError{fmt.Errorf("Config.Requests: the Tokens of request %d are %d: they must be at least 1, or 0 for the Cost", n, tokens)}
		}
	}
	answer, err := i.limiter.DoAll(ctx, requests...)
	var request *pglimit.RequestError
	if errors.As(err, &request) && request.Field == "Key" { // each is valid: one is asked for twice
		err = &usageError{fmt.Errorf("Config.Requests: %w", err)}
	}
	return answer, err
}

// deny ends a call that is over the limit.
func (i *Interceptor) deny(ctx context.Context, call Call, answer pglimit.Group) error {
	denial := Denial{RetryAfter: wholeMillis(answer.RetryAfter), quotaSubject: i.config.QuotaSubject}
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
	if (s.Code() == codes.Internal || s.Code() == codes.Unavailable) && !errors.Is(err, ErrBusy) {
		i.failures.Add(ctx, i.config.Logger, "grpclimit: call not decided", err, "method", call.Method)
	}
	if i.config.Failed != nil {
		if chosen := i.config.Failed(ctx, call, err); chosen != nil {
			return chosen
		}
	}
	return s.Err()
}
