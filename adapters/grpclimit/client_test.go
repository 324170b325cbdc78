package grpclimit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/ratelimit/pglimit"
)

// turns play a Limiter: the first error of Wait is that of wait.
type turns struct {
	mu     sync.Mutex
	wait   error
	err    error // of Pause
	waited []string
	paused []string // key, and for how many minutes
}

func (f *turns) Wait(_ context.Context, key string) (d pglimit.Decision, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waited = append(f.waited, key)
	return d, f.wait
}

func (f *turns) Pause(ctx context.Context, key string, until time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = append(f.paused, fmt.Sprintf("%s %v", key, time.Until(until).Round(time.Minute)))
	return errors.Join(f.err, ctx.Err())
}

// api is a service that ends each call with the error.
type api struct {
	grpc_testing.UnimplementedTestServiceServer
	calls int
	end   error
}

func (s *api) EmptyCall(context.Context, *grpc_testing.Empty) (*grpc_testing.Empty, error) {
	s.calls++
	return &grpc_testing.Empty{}, s.end
}

func (s *api) StreamingInputCall(stream grpc_testing.TestService_StreamingInputCallServer) error {
	s.calls++
	if _, err := stream.Recv(); err != nil && !errors.Is(err, io.EOF) || s.end != nil {
		return s.end
	}
	return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{})
}

func (s *api) StreamingOutputCall(_ *grpc_testing.StreamingOutputCallRequest, stream grpc_testing.TestService_StreamingOutputCallServer) error {
	s.calls++
	return errors.Join(stream.Send(&grpc_testing.StreamingOutputCallResponse{}), s.end)
}

// connect a client of the API, whose calls the interceptor delays with the limiter.
func connect(t *testing.T, s *api, c *ClientInterceptor, limiter *turns) grpc_testing.TestServiceClient {
	t.Helper()
	c.client.Turns = limiter
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, s)
	go server.Serve(listener) //nolint:errcheck // it ends with the test
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(c.Unary), grpc.WithChainStreamInterceptor(c.Stream))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_testing.NewTestServiceClient(conn)
}

// calls are one of each kind.
var calls = map[string]func(context.Context, grpc_testing.TestServiceClient) error{
	"unary": func(ctx context.Context, client grpc_testing.TestServiceClient) error {
		_, err := client.EmptyCall(ctx, &grpc_testing.Empty{})
		return err
	},
	"a stream of the client's": func(ctx context.Context, client grpc_testing.TestServiceClient) error {
		stream, err := client.StreamingInputCall(ctx)
		if err == nil {
			_, err = stream.CloseAndRecv()
		}
		return err
	},
	"a stream of the server's": func(ctx context.Context, client grpc_testing.TestServiceClient) error {
		stream, err := client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	},
}

// in is a status that says to try again after so long.
func in(code codes.Code, delay time.Duration) error {
	return withDetails(status.New(code, "over the quota"), &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}).Err()
}

// What pauses the key, and for how long.
func TestClientPauses(t *testing.T) {
	t.Parallel()
	const key = "target:passthrough:///memory"
	broken := &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: -1, Nanos: 2_000_000_000}}
	for name, row := range map[string]struct {
		end  error
		want string
	}{
		"fine":                   {nil, "[]"},
		"exhausted":              {in(codes.ResourceExhausted, 30*time.Minute), "[" + key + " 30m0s]"},
		"unavailable":            {in(codes.Unavailable, 30*time.Minute), "[" + key + " 30m0s]"},
		"some other code":        {in(codes.Internal, 30*time.Minute), "[]"},
		"it does not say when":   {status.Error(codes.ResourceExhausted, "over the quota"), "[]"},
		"at once":                {in(codes.ResourceExhausted, 0), "[]"},
		"in the past":            {in(codes.ResourceExhausted, -time.Minute), "[]"},
		"in years":               {in(codes.ResourceExhausted, 1<<62), "[" + key + " 2h0m0s]"},
		"RetryInfo has no delay": {withDetails(status.New(codes.ResourceExhausted, ""), &errdetails.RetryInfo{}).Err(), "[]"},
		"RetryInfo is not valid": {withDetails(status.New(codes.ResourceExhausted, ""), broken).Err(), "[" + key + " 0s]"},
	} {
		for kind, call := range calls {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				s, limiter := &api{end: row.end}, &turns{}
				client := connect(t, s, &ClientInterceptor{MaxPause: 2 * time.Hour}, limiter)
				if err := call(t.Context(), client); status.Code(err) != status.Code(row.end) {
					t.Errorf("the call ended with %v", err)
				}
				if fmt.Sprint(limiter.paused) != row.want || fmt.Sprint(limiter.waited) != "["+key+"]" || s.calls != 1 {
					t.Errorf("paused %v, want %v; waited for %v, sent %d", limiter.paused, row.want, limiter.waited, s.calls)
				}
			})
		}
	}
}

// A call whose turn does not come is not sent. Its error has a status, and is that of the limiter.
func TestClientDoesNotSend(t *testing.T) {
	t.Parallel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	broken := errors.New("the database is down")
	for name, row := range map[string]struct {
		ctx  context.Context
		key  KeyFunc
		wait error
		want codes.Code
		is   error
	}{
		"too long":            {t.Context(), Constant("a"), fmt.Errorf("%w: a minute", pglimit.ErrWaitTooLong), codes.ResourceExhausted, pglimit.ErrWaitTooLong},
		"the caller has left": {gone, Constant("a"), context.Canceled, codes.Canceled, context.Canceled},
		"no decision":         {t.Context(), Constant("a"), fmt.Errorf("%w: %w", pglimit.ErrUnavailable, broken), codes.Unavailable, broken},
		"no key":              {t.Context(), func(context.Context, Call) (string, error) { return "", ErrNoKey }, nil, codes.Internal, ErrNoKey},
		"a bad key":           {t.Context(), Constant(""), &pglimit.RequestError{Field: "Key", Why: "is empty"}, codes.Internal, nil},
	} {
		for kind, call := range calls {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				s, limiter := new(api), &turns{wait: row.wait}
				err := call(row.ctx, connect(t, s, &ClientInterceptor{Key: row.key}, limiter))
				if status.Code(err) != row.want || row.is != nil && !errors.Is(err, row.is) || s.calls > 0 || !strings.Contains(err.Error(), "grpclimit: not sent: ") {
					t.Errorf("%v: %v, sent %d", status.Code(err), err, s.calls)
				}
			})
		}
	}
	err := new(ClientInterceptor).Unary(t.Context(), "", nil, nil, new(grpc.ClientConn), nil)
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "Limiter is nil") {
		t.Error(err)
	}
}

// A pause that fails is logged, and the call ends as it would have.
func TestClientPauseFails(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	limiter := &turns{err: errors.New("the database is down")}
	client := connect(t, &api{end: in(codes.ResourceExhausted, time.Minute)}, &ClientInterceptor{Key: Constant("partner"), Logger: slog.New(slog.NewTextHandler(&log, nil))}, limiter)
	if err := calls["unary"](t.Context(), client); status.Convert(err).Message() != "over the quota" {
		t.Error(err)
	}
	for _, want := range []string{"not paused", "the database is down", "partner"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in %s", want, &log)
		}
	}
}
