package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

const (
	emptyCall = grpc_testing.TestService_EmptyCall_FullMethodName
	pushback  = "grpc-retry-pushback-ms"
)

// service counts what reaches its handlers.
type service struct {
	grpc_testing.UnimplementedTestServiceServer
	calls, messages atomic.Int64
	answer          func(context.Context) error // to EmptyCall and StreamingInputCall
}

func (s *service) end(ctx context.Context) error {
	if s.answer == nil {
		return nil
	}
	return s.answer(ctx)
}

func (s *service) EmptyCall(ctx context.Context, in *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	s.calls.Add(1)
	return in, s.end(ctx)
}

func (s *service) UnaryCall(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	s.calls.Add(1)
	return &grpc_testing.SimpleResponse{}, nil
}

// StreamingInputCall ends with the error of Recv, if there is one.
func (s *service) StreamingInputCall(stream grpc_testing.TestService_StreamingInputCallServer) error {
	s.calls.Add(1)
	for {
		_, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if err := s.end(stream.Context()); err != nil {
				return err
			}
			return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{})
		}
		if err != nil {
			if _, again := stream.Recv(); again != err { //nolint:errorlint // the same, not one like it
				return status.Errorf(codes.Unknown, "after %v the stream gives %v", err, again)
			}
			return err
		}
		s.messages.Add(1)
	}
}

func (s *service) StreamingOutputCall(_ *grpc_testing.StreamingOutputCallRequest, stream grpc_testing.TestService_StreamingOutputCallServer) error {
	s.calls.Add(1)
	return stream.Send(&grpc_testing.StreamingOutputCallResponse{})
}

// anybody counts all calls together.
var anybody = grpclimit.Constant("anybody")

// perHour grants a burst and then, as far as a test goes, nothing.
func perHour(burst int64) pglimit.Limit { return pglimit.PerHour(1).WithBurst(burst) }

func newLimiter(t testing.TB, strategy pglimit.Strategy, limit pglimit.Limit) *pglimit.Limiter {
	t.Helper()
	limiter, err := pglimittest.New(strategy, pglimit.Config{Name: "api", Limit: limit})
	must(t, err)
	return limiter
}

// serve the service with the limits, on a connection in memory, and return a client of it.
func serve(t testing.TB, limiter *pglimit.Limiter, config grpclimit.Config, s *service, options ...grpc.DialOption) grpc_testing.TestServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
	return serveOn(t, listener, "passthrough:///memory", limiter, config, s, append(options, dial)...)
}

func serveOn(t testing.TB, listener net.Listener, target string, limiter *pglimit.Limiter, config grpclimit.Config, s *service, options ...grpc.DialOption) grpc_testing.TestServiceClient {
	t.Helper()
	limits, err := grpclimit.New(limiter, config)
	must(t, err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limits.Unary), grpc.ChainStreamInterceptor(limits.Stream))
	grpc_testing.RegisterTestServiceServer(server, s)
	go server.Serve(listener) //nolint:errcheck // it ends with the test
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(target, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_testing.NewTestServiceClient(conn)
}

// call the server, and return how the call ended, and what pushback its trailer has.
func call(ctx context.Context, client grpc_testing.TestServiceClient) (*status.Status, []string) {
	var trailer metadata.MD
	_, err := client.EmptyCall(ctx, &grpc_testing.Empty{}, grpc.Trailer(&trailer))
	return status.Convert(err), trailer[pushback]
}

func wantCode(t testing.TB, client grpc_testing.TestServiceClient, want codes.Code) {
	t.Helper()
	if got, _ := call(t.Context(), client); got.Code() != want {
		t.Errorf("the call ended with %v, not with %v", got, want)
	}
}

// send so many messages on a stream of the client's.
func send(t testing.TB, client grpc_testing.TestServiceClient, messages int) (*status.Status, metadata.MD) {
	t.Helper()
	stream, err := client.StreamingInputCall(t.Context())
	must(t, err)
	for range messages {
		if err := stream.Send(&grpc_testing.StreamingInputCallRequest{}); err != nil {
			break // that of CloseAndRecv says more
		}
	}
	_, err = stream.CloseAndRecv()
	return status.Convert(err), stream.Trailer()
}

// wantLeft says how many tokens the key must have left.
func wantLeft(t testing.TB, limiter *pglimit.Limiter, key string, want int64) {
	t.Helper()
	d, err := limiter.Peek(t.Context(), key)
	if err != nil || d.Remaining != want {
		t.Errorf("the key %q has %d tokens left, not %d; error %v", key, d.Remaining, want, err)
	}
}

// details of a status, of which there may be one of each kind.
func details(t testing.TB, s *status.Status) (retry *errdetails.RetryInfo, quota *errdetails.QuotaFailure) {
	t.Helper()
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.RetryInfo:
			retry = detail
		case *errdetails.QuotaFailure:
			quota = detail
		default:
			t.Errorf("a detail that is not known: %v", detail)
		}
	}
	return retry, quota
}

// forgiving is a strategy whose clock moves on by what it tells to wait, after each denial.
type forgiving struct {
	*pglimittest.Strategy
	denials atomic.Int64
	waited  atomic.Int64 // in ns
}

func (f *forgiving) Take(ctx context.Context, session pglimit.Session, requests []rate.Request) ([]pglimit.Decision, error) {
	decisions, err := f.Strategy.Take(ctx, session, requests)
	for _, d := range decisions {
		if !d.Allowed {
			f.denials.Add(1)
			f.waited.Add(int64(d.RetryAfter))
			f.Advance(d.RetryAfter)
		}
	}
	return decisions, err
}

var _ pglimit.Strategy = (*forgiving)(nil)

const soon = 20 * time.Second // far longer than a test takes, so that it fails instead of hanging

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
