package grpclimit

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pglimit/ratelimit/pglimit"
)

// Call describes a call to the functions of a [Config]. Its metadata and its peer are in the context.
type Call struct {
	// Method is the full name, "/package.Service/Method".
	Method string

	// Message of the client: the request of a unary call. It is nil when a stream is opened; with Config.PerMessage, it
	// is then each message in turn.
	Message any
}

// Config of an [Interceptor]. Key is required. The zero value of every other field is its default. The functions are
// called concurrently.
type Config struct {
	// Key says whom a call is counted for: [Subject], [PeerIP], [ClientIP], [Metadata], [Method], [Constant], [Join],
	// [FirstOf], [Hashed], [Unauthenticated], or your own function. Calls with the same key share a bucket. An error or
	// an empty key is answered by Failed: no call passes without a key.
	Key KeyFunc

	// Skip says which calls pass without a decision, such as health checks: see [Methods]. Nil: none.
	Skip func(ctx context.Context, call Call) bool

	// Cost is how many tokens a call takes, all or none. Nil: 1. A cost below 1 is an error, and so is a cost above the
	// Burst of the limit, which could never be granted. Failed answers both.
	Cost func(ctx context.Context, call Call) int64

	// Limit is the limit of the call, such as that of the customer's plan. Nil, or the zero Limit, means the Limiter's
	// own. A key has one bucket, whatever its limit: for a limit per method, the key must name the method, as
	// Join(Method, …) does. See [pglimit.Limiter.Do].
	Limit func(ctx context.Context, call Call) pglimit.Limit

	// Requests asks for several limits, all or nothing: see [pglimit.Limiter.DoAll]. The key is that of Key. Each
	// request must have a Key. Zero Tokens means the Cost, never a peek; negative Tokens are an error. An empty Limiter
	// and Limit mean the Limiter's own. The strategy must support groups, as strategies.TokenBucket{} does, and the
	// Limiter must have no Block. Nil: one limit. With Requests, Limit must be nil.
	//
	//	func(_ context.Context, _ grpclimit.Call, key string) []pglimit.Request {
	//		return []pglimit.Request{{Key: key}, {Limiter: "api/day", Key: key, Limit: daily}}
	//	}
	Requests func(ctx context.Context, call Call, key string) []pglimit.Request

	// PerMessage charges each message that the client sends on a stream, when the handler receives it, in addition to
	// the opening. If a message is denied, the handler's Recv returns the status that the call should end with. The
	// single request of a server-streaming call is covered by the opening.
	PerMessage bool

	// Refund says, after a call ended with the code, whether its tokens are returned: [OnFailure], [OnSuccess],
	// [OnCodes], or your own function. See [Failed] for handlers that answer failures with OK. It is not called if the
	// handler used [Settle]. Messages that PerMessage charged stay charged. A call whose handler panicked has the code
	// Internal. The strategy must be a [pglimit.GiveBacker]. Nil: all calls count.
	//
	// A call that failed after its client cancelled it, or after its deadline, has the code Canceled or
	// DeadlineExceeded, whatever the handler returned. If your own function refunds these, or another code that clients
	// can cause, such clients have no limit.
	//
	// A refund is a round trip for each decision, before the client sees the end of the call.
	Refund func(ctx context.Context, call Call, code codes.Code) bool

	// MaxPushback is how long a client with a retry policy may be told to wait; until then the call stays open there.
	// If the tokens come later, or after the call's deadline, the client is told not to retry, and its caller gets the
	// status at once. Zero: ten seconds. Negative: no client is told to retry.
	MaxPushback time.Duration

	// Denied returns the error that a call over the limit ends with. The trailer is already set. Nil: that of
	// [Denial.Status].
	Denied func(ctx context.Context, call Call, denial Denial) error

	// Failed returns the error for a call without a known decision, or one that Config.OnError of the Limiter denied
	// (then the error is [ErrFallback]). The call ends with it; returning nil does not let it through. Nil: the status
	// of [StatusOf].
	Failed func(ctx context.Context, call Call, err error) error

	// Logger gets the failures that [StatusOf] makes INTERNAL or UNAVAILABLE, and refunds that failed: the first of
	// each kind at once, then at most one every ten seconds, with the number of those in between. Nil: slog.Default().
	Logger *slog.Logger
}

const defaultMaxPushback = 10 * time.Second
