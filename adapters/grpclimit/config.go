package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/pglimit/ratelimit/pglimit"
)

// Call is what the functions of a [Config] are told of a call. Its metadata and its peer are in the
// context.
type Call struct {
	// Method is the full name, "/package.Service/Method".
	Method string

	// Message of the client's: the request of a unary call. When a stream is opened it is nil; with
	// Config.PerMessage, it is then each message in turn.
	Message any
}

// Config of an [Interceptor]. Key is required. The zero value of every other field means its
// default. The functions are called concurrently.
type Config struct {
	// Key says whom a call is counted for: [Subject], [PeerIP], [ClientIP], [Metadata], [Method], [Constant],
	// [Join], [FirstOf], [Hashed], [Unauthenticated], or a function of yours. Calls with the same key share a bucket.
	// An error, or an empty key, is answered by Failed: nothing passes without a limit.
	Key KeyFunc

	// Skip says which calls pass without a decision, such as health checks: see [Methods]. Nil: none.
	Skip func(ctx context.Context, call Call) bool

	// Cost is how many tokens a call takes, all or none. Nil: 1. A cost of less than 1 is an error,
	// and so is more than the Burst of the limit, which could never be granted: Failed answers both.
	Cost func(ctx context.Context, call Call) int64

	// Limit is the limit of the call, such as that of the customer's plan. The zero Limit, and
	// nil, mean the Limiter's own. A key has one bucket, whatever its limit: for a limit per
	// method, the key must name the method, as that of Join(Method, …) does. See
	// [pglimit.Limiter.Do].
	Limit func(ctx context.Context, call Call) pglimit.Limit

	// Requests asks for several limits, all or nothing: see [pglimit.Limiter.DoAll]. The key is
	// that of Key. Each of the requests must have a Key; Tokens that are left out are the Cost,
	// never a peek; negative ones are an error. A Limiter and Limit that are left out are the Limiter's own.
	// The strategy must be one that knows groups, such as strategies.TokenBucket{}, and the Limiter without a
	// Block. Nil: one limit. With Requests, Limit must be nil.
	//
	//	func(_ context.Context, _ grpclimit.Call, key string) []pglimit.Request {
	//		return []pglimit.Request{{Key: key}, {Limiter: "api/day", Key: key, Limit: daily}}
	//	}
	Requests func(ctx context.Context, call Call, key string) []pglimit.Request

	// PerMessage charges each message that the client sends on a stream, when the handler receives
	// it, besides the opening. If a message is denied, the handler's Recv returns the status that
	// the call should end with. The one request of a stream that only the server sends on is paid for by
	// the opening.
	PerMessage bool

	// Refund says, after a call ended with the code, whether its tokens are given back:
	// [OnFailure], [OnSuccess], [OnCodes], or a function of yours. See [Failed] for handlers that answer
	// failures with OK, and [Settle] for handlers that know what a call cost: then Refund is not asked. Messages that PerMessage
	// charged stay charged. A call whose handler panicked has the code Internal. The strategy must
	// be a [pglimit.GiveBacker]. Nil: all calls count.
	//
	// A call that failed after its client had cancelled it, or its deadline was over, has the code
	// Canceled or DeadlineExceeded, whatever the handler returned. A function of yours that gives
	// back for these, or for another code that clients can bring about, leaves them without a limit.
	//
	// Giving back is a round trip for each decision, before the client sees the end of the call.
	Refund func(ctx context.Context, call Call, code codes.Code) bool

	// MaxPushback is how long a client with a retry policy may be told to wait: until then the call
	// stays open there. If the tokens come later, or after the deadline of the call, the client
	// is told not to retry, and its caller gets the status at once. Zero: ten seconds.
	// Negative: no client is told to retry.
	MaxPushback time.Duration

	// QuotaSubject is the subject in QuotaFailure, made of the key: see [Hash]. A key may be a secret or
	// somebody's name, and statuses are logged by proxies and clients. Nil: no subject.
	QuotaSubject func(key string) string

	// Denied returns the error that a call over the limit ends with. The trailer is set already.
	// Nil: that of [Denial.Status].
	Denied func(ctx context.Context, call Call, denial Denial) error

	// Failed returns the error for a call of which no decision is known, or that Config.OnError of the
	// Limiter denied (then the error is [ErrFallback]). The call ends with it; nil does not let it
	// through. Nil: the status of [StatusOf].
	Failed func(ctx context.Context, call Call, err error) error

	// Logger gets the failures that [StatusOf] makes INTERNAL or UNAVAILABLE, and refunds that
	// failed: of each kind the first at once, then at most one every ten seconds, with the
	// number of those in between. Nil: slog.Default().
	Logger *slog.Logger
}

const defaultMaxPushback = 10 * time.Second

// Validate returns an error that names the field and what is allowed, or nil.
func (c *Config) Validate(limiter *pglimit.Limiter) error {
	switch {
	case limiter == nil:
		return errors.New("grpclimit: the limiter is nil")
	case c.Key == nil:
		return errors.New("grpclimit: Config.Key is nil: say whom calls are counted for, for instance grpclimit.PeerIP")
	case c.Requests != nil && c.Limit != nil:
		return errors.New("grpclimit: Config.Limit and Config.Requests are both set: set the Limit of each of the Requests")
	}
	strategy := limiter.Strategy()
	if c.Requests != nil {
		if err := strategy.Check(&pglimit.Request{Limit: limiter.Limit(), Group: 1}); err != nil {
			return fmt.Errorf("grpclimit: Config.Requests is set, but %w", err)
		}
		if config := limiter.Config(); config.Block != (pglimit.Block{}) {
			return fmt.Errorf("grpclimit: Config.Requests is set, but the limiter %s has a Block, and takes no groups: chain two interceptors, one of it with Refund: grpclimit.OnFailure before one with the other Requests", config.Name)
		}
	}
	if _, able := strategy.(pglimit.GiveBacker); c.Refund != nil && !able {
		return fmt.Errorf("grpclimit: Config.Refund is set, but the strategy %s takes nothing back", strategy.Name())
	}
	return nil
}
