package grpclimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/ratelimit/adapters/grpclimit"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/pglimittest"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

func TestDeniedCall(t *testing.T) {
	t.Parallel()
	memory, s := pglimittest.Memory(), new(service)
	limiter := newLimiter(t, memory, pglimit.Limit{Tokens: 1, Period: 1500*time.Millisecond + time.Microsecond, Burst: 2})
	client := serve(t, limiter, grpclimit.Config{Key: anybody}, s)
	for range 2 {
		if granted, trailer := call(t.Context(), client); granted.Code() != codes.OK || trailer != nil {
			t.Errorf("a call within the limit ended with %v and the trailer %q", granted, trailer)
		}
	}

	denied, trailer := call(t.Context(), client)
	if denied.Code() != codes.ResourceExhausted || denied.Message() != "rate limit exceeded: try again in 1.501s" {
		t.Errorf("the call over the limit ended with %v", denied)
	}
	if len(trailer) != 1 || trailer[0] != "1501" { // rounded up: 1500 would be too early
		t.Errorf("%s is %q, not 1501", pushback, trailer)
	}
	retry, quota := details(t, denied)
	if retry.GetRetryDelay().AsDuration() != 1501*time.Millisecond {
		t.Errorf("RetryInfo is %v", retry)
	}
	v := quota.GetViolations()
	if len(v) != 1 || v[0].QuotaId != "api" || v[0].QuotaValue != 2 || v[0].Subject != "" || !strings.Contains(v[0].Description, "1/1500001000ns burst 2") {
		t.Errorf("QuotaFailure is %v", quota)
	}
	if strings.Contains(denied.String(), "anybody") {
		t.Errorf("the status tells the key: %v", denied)
	}
	if s.calls.Load() != 2 {
		t.Errorf("%d calls reached the handler, not 2", s.calls.Load())
	}
	memory.Advance(1501 * time.Millisecond)
	wantCode(t, client, codes.OK)
}

// What denies without a limit is told as such: a rule, and a limit of new clients.
func TestDenialsWithoutALimit(t *testing.T) {
	t.Parallel()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{
		Name: "api", Limit: pglimit.PerMinute(3), NewKeys: pglimit.NewKeys{Limit: pglimit.PerMinute(1)},
		Limits: pglimit.FixedLimits(pglimit.LimitRule{Limiter: "api", Key: "bot", Action: pglimit.ActionDeny}),
	})
	must(t, err)
	client := func(key string) grpc_testing.TestServiceClient {
		return serve(t, limiter, grpclimit.Config{Key: grpclimit.Constant(key)}, new(service))
	}
	wantCode(t, client("a"), codes.OK)
	for key, want := range map[string]string{"bot": "all calls are denied", "new": "too many new clients"} {
		denied, _ := call(t.Context(), client(key))
		_, quota := details(t, denied)
		if v := quota.GetViolations(); denied.Code() != codes.ResourceExhausted || v[0].GetDescription() != want || v[0].GetQuotaValue() != 0 {
			t.Errorf("%s: %v, QuotaFailure is %v", key, denied, quota)
		}
	}
}

func TestNoDecisionIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		onError func(context.Context, pglimit.Failure) (pglimit.Decision, error)
		want    codes.Code
		retry   time.Duration
	}{
		"no choice":   {nil, codes.Unavailable, 0},
		"fail closed": {pglimit.FailClosed, codes.Unavailable, time.Second},
		"fail open":   {pglimit.FailOpen, codes.OK, 0},
		"a status of one's own": {func(context.Context, pglimit.Failure) (pglimit.Decision, error) {
			return pglimit.Decision{}, status.Error(codes.Aborted, "later")
		}, codes.Aborted, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memory, s := pglimittest.Memory(), new(service)
			limiter, err := pglimittest.New(memory, pglimit.Config{Name: "api", Limit: perHour(1), OnError: c.onError})
			must(t, err)
			memory.Fail(pglimit.ErrUnavailable)
			// Nothing was taken: there is nothing to give back.
			var log bytes.Buffer
			client := serve(t, limiter, grpclimit.Config{Key: anybody, Refund: grpclimit.OnSuccess, Logger: slog.New(slog.NewTextHandler(&log, nil))}, s)
			ended, _ := call(t.Context(), client)
			if strings.Contains(log.String(), "not decided") != (c.want == codes.Unavailable) || strings.Contains(log.String(), "given back") {
				t.Errorf("logged: %s", log.String())
			}
			if ended.Code() != c.want || (s.calls.Load() == 1) != (c.want == codes.OK) {
				t.Errorf("the call ended with %v, and the handler had %d calls", ended, s.calls.Load())
			}
			if retry, quota := details(t, ended); retry.GetRetryDelay().AsDuration() != c.retry || quota != nil {
				t.Errorf("RetryInfo is %v, QuotaFailure %v", retry, quota)
			}
			memory.Fail(nil)
			wantLeft(t, limiter, "anybody", 1)
		})
	}
}

func TestCallWithoutAValidRequestIsNotLetThrough(t *testing.T) {
	t.Parallel()
	cost := func(n int64) func(context.Context, grpclimit.Call) int64 {
		return func(context.Context, grpclimit.Call) int64 { return n }
	}
	requests := func(r ...pglimit.Request) func(context.Context, grpclimit.Call, string) []pglimit.Request {
		return func(context.Context, grpclimit.Call, string) []pglimit.Request { return r }
	}
	for name, c := range map[string]struct {
		config grpclimit.Config
		want   codes.Code
		logged string
	}{
		"empty key":        {grpclimit.Config{Key: grpclimit.Constant("")}, codes.Internal, "the key is empty"},
		"key fails":        {grpclimit.Config{Key: func(context.Context, grpclimit.Call) (string, error) { return "k", errors.New("no such user") }}, codes.Internal, "no such user"},
		"status of key":    {grpclimit.Config{Key: grpclimit.Metadata("x-api-key")}, codes.InvalidArgument, ""},
		"nobody":           {grpclimit.Config{Key: grpclimit.FirstOf(grpclimit.Subject("user", userOf), grpclimit.Unauthenticated)}, codes.Unauthenticated, ""},
		"status OK of key": {grpclimit.Config{Key: func(context.Context, grpclimit.Call) (string, error) { return "k", okError{} }, Refund: grpclimit.OnSuccess}, codes.Internal, "all is well"},
		"long key":         {grpclimit.Config{Key: grpclimit.Constant(strings.Repeat("k", pglimit.MaxKeyBytes+1))}, codes.InvalidArgument, ""},
		"cost too high":    {grpclimit.Config{Key: anybody, Cost: cost(4)}, codes.InvalidArgument, ""},
		"bad limit":        {grpclimit.Config{Key: anybody, Limit: func(context.Context, grpclimit.Call) pglimit.Limit { return pglimit.Limit{Tokens: -1} }}, codes.Internal, "Limit.Tokens is -1"},
		"a bucket twice":   {grpclimit.Config{Key: anybody, Requests: requests(pglimit.Request{Key: "secret"}, pglimit.Request{Limiter: "api", Key: "secret"})}, codes.Internal, "is asked for twice: ask once, for the Tokens of both (1 and 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			c.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s := new(service)
			client := serve(t, newLimiter(t, pglimittest.Memory(), perHour(3)), c.config, s)
			for range 2 {
				wantCode(t, client, c.want)
			}
			if stream, _ := send(t, client, 1); stream.Code() != c.want {
				t.Errorf("the stream ended with %v", stream)
			} else if text := stream.Message(); strings.Contains(text, "secret") || strings.Contains(text, "Request.") {
				t.Errorf("the client is told %q", text)
			}
			if s.calls.Load() != 0 {
				t.Error("a call reached the handler")
			}
			if c.logged == "" && log.Len() > 0 || !strings.Contains(log.String(), c.logged) || strings.Count(log.String(), "\n") > 1 {
				t.Errorf("the log says %q; it should say %q, and only once", log.String(), c.logged)
			}
		})
	}
}

// okError is an error whose status is OK: it lets no call through.
type okError struct{}

func (okError) Error() string              { return "all is well" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// A handler charges what the call cost, of a unary call and of a stream, once, and then Refund is not asked.
func TestAHandlerSettles(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, pglimittest.Memory(), perHour(100))
	settle := func(ctx context.Context) error {
		nearest, _ := grpclimit.Decision(ctx)
		if all := grpclimit.Decisions(ctx); len(all) != 2 || nearest != all[0] || nearest.Granted != 30 {
			t.Errorf("%+v; %+v", nearest, all)
		}
		if charged, err := grpclimit.Settle(ctx, 10); err != nil || charged.Granted != 10 {
			t.Errorf("%+v, %v", charged, err)
		}
		if charged, err := grpclimit.Settle(ctx, 1); err == nil || !strings.Contains(err.Error(), "grpclimit: the request was settled before") {
			t.Errorf("again: %+v, %v", charged, err)
		}
		return nil
	}
	client := serve(t, limiter, grpclimit.Config{
		Key:  anybody,
		Cost: func(context.Context, grpclimit.Call) int64 { return 30 },
		Requests: func(_ context.Context, _ grpclimit.Call, key string) []pglimit.Request {
			return []pglimit.Request{{Key: key}, {Key: "org:7"}}
		},
		Refund:     func(context.Context, grpclimit.Call, codes.Code) bool { return true },
		PerMessage: true,
	}, &service{answer: settle})
	wantCode(t, client, codes.OK)
	if ended, _ := send(t, client, 0); ended.Code() != codes.OK {
		t.Errorf("the stream ended with %v", ended)
	}
	wantLeft(t, limiter, "anybody", 80)
	wantLeft(t, limiter, "org:7", 80)
	if d, ok := grpclimit.Decision(t.Context()); ok || grpclimit.Decisions(t.Context()) != nil {
		t.Errorf("without a limit: %+v", d)
	}
}

func TestCostLimitAndSkip(t *testing.T) {
	t.Parallel()
	limiter := newLimiter(t, pglimittest.Memory(), perHour(3))
	client := serve(t, limiter, grpclimit.Config{
		Key: anybody,
		Cost: func(_ context.Context, call grpclimit.Call) int64 {
			if request, is := call.Message.(*grpc_testing.SimpleRequest); is {
				return int64(request.ResponseSize)
			}
			return 1
		},
		Limit: func(ctx context.Context, _ grpclimit.Call) pglimit.Limit {
			if metadata.ValueFromIncomingContext(ctx, "plan") != nil {
				return perHour(4)
			}
			return pglimit.Limit{}
		},
		Skip: grpclimit.Methods("grpc.testing.TestService/StreamingInputCall"),
	}, new(service))
	if _, err := client.UnaryCall(t.Context(), &grpc_testing.SimpleRequest{ResponseSize: 2}); err != nil {
		t.Error(err)
	}
	wantLeft(t, limiter, "anybody", 1)
	wantCode(t, client, codes.OK)
	wantCode(t, client, codes.ResourceExhausted)
	if skipped, _ := send(t, client, 1); skipped.Code() != codes.OK {
		t.Errorf("a call that is not limited ended with %v", skipped)
	}
	paid := metadata.AppendToOutgoingContext(t.Context(), "plan", "paid") // the plan has one more
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if ended, _ := call(paid, client); ended.Code() != want {
			t.Errorf("with a plan a call ended with %v, not with %v", ended, want)
		}
	}
}

func TestSeveralLimits(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	limiter := newLimiter(t, memory, pglimit.PerSecond(2))
	client := serve(t, limiter, grpclimit.Config{
		Key: anybody,
		Requests: func(_ context.Context, _ grpclimit.Call, key string) []pglimit.Request {
			return []pglimit.Request{{Key: key}, {Limiter: "hour", Key: key, Limit: perHour(3)}}
		},
	}, new(service))
	for i, want := range []string{"", "", "api", "", "hour"} {
		if i == 3 {
			memory.Advance(time.Second)
		}
		s, _ := call(t.Context(), client)
		_, quota := details(t, s)
		got := ""
		for _, v := range quota.GetViolations() {
			got += v.QuotaId
		}
		if got != want {
			t.Errorf("call %d: denied by %q, not by %q", i, got, want)
		}
	}
	wantLeft(t, limiter, "anybody", 1) // the denial by the hour's limit took nothing of the second's
}

func TestClientThatLeavesIsNotTold(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	limits, err := grpclimit.New(newLimiter(t, pglimittest.Memory(), perHour(1)), grpclimit.Config{Key: anybody, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancelLate()
	for ctx, want := range map[context.Context]codes.Code{canceled: codes.Canceled, late: codes.DeadlineExceeded} {
		_, err := limits.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: emptyCall}, nil)
		if status.Code(err) != want {
			t.Errorf("the call ended with %v, not with %v", err, want)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	memory := pglimittest.Memory()
	var failed error
	client := serve(t, newLimiter(t, memory, perHour(1)), grpclimit.Config{
		Key: anybody,
		Denied: func(_ context.Context, call grpclimit.Call, d grpclimit.Denial) error {
			if call.Method != emptyCall {
				return nil
			}
			return status.Errorf(codes.OutOfRange, "%d of %s, %v", len(d.Decisions), d.Decisions[0].Key, d.RetryAfter)
		},
		Failed: func(_ context.Context, call grpclimit.Call, err error) error {
			if failed = err; call.Method != emptyCall {
				return nil
			}
			return status.Error(codes.Aborted, "mine")
		},
		Logger: slog.New(slog.DiscardHandler),
	}, new(service))
	wantCode(t, client, codes.OK)
	if denied, trailer := call(t.Context(), client); denied.Code() != codes.OutOfRange || denied.Message() != "1 of anybody, 1h0m0s" || trailer == nil {
		t.Errorf("the call ended with %v and the trailer %q", denied, trailer)
	}
	if denied, _ := send(t, client, 1); denied.Code() != codes.ResourceExhausted {
		t.Errorf("without an error of the hook's, the stream ended with %v", denied)
	}
	memory.Fail(pglimit.ErrUnavailable)
	wantCode(t, client, codes.Aborted)
	if !errors.Is(failed, pglimit.ErrUnavailable) {
		t.Errorf("the hook got %v", failed)
	}
	if ended, _ := send(t, client, 1); ended.Code() != codes.Unavailable {
		t.Errorf("without an error of the hook's, the stream ended with %v", ended)
	}
}

func TestBlockedKey(t *testing.T) {
	t.Parallel()
	limiter, err := pglimittest.New(pglimittest.Memory(), pglimit.Config{
		Name: "login", Limit: pglimit.PerSecond(1), Block: pglimit.Block{After: 1, Within: time.Minute, For: time.Hour, Max: time.Hour},
	})
	must(t, err)
	client := serve(t, limiter, grpclimit.Config{Key: anybody}, new(service))
	wantCode(t, client, codes.OK)
	wantCode(t, client, codes.ResourceExhausted)
	blocked, trailer := call(t.Context(), client)
	retry, quota := details(t, blocked)
	if retry.GetRetryDelay().AsDuration() != time.Hour || !strings.Contains(quota.GetViolations()[0].Description, "too many denials") || trailer[0] != "-1" {
		t.Errorf("a blocked key got %v, %v, the trailer %q", retry, quota, trailer)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	limiter, plain := newLimiter(t, pglimittest.Memory(), perHour(1)), newLimiter(t, onlyTakes{pglimittest.Memory()}, perHour(1))
	requests := func(context.Context, grpclimit.Call, string) []pglimit.Request { return nil }
	limit := func(context.Context, grpclimit.Call) pglimit.Limit { return pglimit.Limit{} }
	for want, c := range map[string]struct {
		limiter *pglimit.Limiter
		config  grpclimit.Config
	}{
		"limiter is nil":                     {nil, grpclimit.Config{Key: anybody}},
		"Config.Key is nil":                  {limiter, grpclimit.Config{}},
		"Limit and Config.Requests are both": {limiter, grpclimit.Config{Key: anybody, Limit: limit, Requests: requests}},
		"Config.Requests is set, but":        {plain, grpclimit.Config{Key: anybody, Requests: requests}},
		"Config.Refund is set, but":          {plain, grpclimit.Config{Key: anybody, Refund: grpclimit.OnFailure}},
	} {
		if _, err := grpclimit.New(c.limiter, c.config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, and should say %q", err, want)
		}
	}
}

// Methods names a method or a whole service.
func TestMethods(t *testing.T) {
	t.Parallel()
	skip := grpclimit.Methods("grpc.health.v1.Health", "/a.B/C")
	for method, want := range map[string]bool{"/grpc.health.v1.Health/Check": true, "/a.B/C": true, "/a.B/D": false, "/a.BC/C": false} {
		if got := skip(t.Context(), grpclimit.Call{Method: method}); got != want {
			t.Errorf("%s: %t", method, got)
		}
	}
}

// onlyTakes is a strategy that can only take.
type onlyTakes struct{ pglimit.Strategy }

func (s onlyTakes) Check(r *rate.Request) error { return rate.Unsupported(s.Name(), r) }
