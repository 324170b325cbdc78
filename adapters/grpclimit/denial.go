package grpclimit

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/ratelimit/pglimit"
)

// Denial of a call that is over the limit.
type Denial struct {
	// RetryAfter is the time until the call could be granted, if nobody else takes tokens. It is rounded up to whole
	// milliseconds, as in the trailer, and at least one.
	RetryAfter time.Duration

	// Decisions that denied: one, unless Config.Requests asked for several limits. Each names its
	// Limiter, Key and Limit, and says whether the key is Blocked.
	Decisions []pglimit.Decision
}

// Status is RESOURCE_EXHAUSTED with the details RetryInfo and QuotaFailure. A violation has the Limiter's name as
// quota_id, the Burst as quota_value, and the limit in its description, but not the key: it may be a secret or a
// person's name, and proxies and clients log statuses. Add details with WithDetails.
func (d *Denial) Status() *status.Status {
	violations := make([]*errdetails.QuotaFailure_Violation, len(d.Decisions))
	for i := range d.Decisions {
		violations[i] = violation(&d.Decisions[i])
	}
	denied := status.Newf(codes.ResourceExhausted, "rate limit exceeded: try again in %v", d.RetryAfter)
	return withDetails(denied,
		&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)},
		&errdetails.QuotaFailure{Violations: violations})
}

func violation(of *pglimit.Decision) *errdetails.QuotaFailure_Violation {
	v := &errdetails.QuotaFailure_Violation{
		Description: "the limit is " + of.Limit.String(), QuotaId: of.Limiter, QuotaValue: of.Limit.Burst,
	}
	switch of.Source {
	case pglimit.FromRule: // a row of pglimit.limits, which has no limit
		v.Description, v.QuotaValue = "all calls are denied", 0
	case pglimit.FromNewKeys:
		v.Description, v.QuotaValue = "too many new clients", 0
	}
	if of.Blocked {
		v.Description += "; after too many denials, all calls are denied for some time"
	}
	return v
}

// withDetails returns the status without them if they cannot be encoded: it says the same.
func withDetails(s *status.Status, details ...protoadapt.MessageV1) *status.Status {
	if full, err := s.WithDetails(details...); err == nil {
		return full
	}
	return s
}

// wholeMillis rounds a RetryAfter up. A decision that is contended does not know one.
func wholeMillis(d time.Duration) time.Duration {
	return max(d+time.Millisecond-1, time.Millisecond).Truncate(time.Millisecond)
}

// setPushback tells a client with a retry policy how many milliseconds to wait, or, if negative, not to retry. A client
// that waited past its deadline would not get the status.
func setPushback(ctx context.Context, wait, longest time.Duration) {
	if deadline, ends := ctx.Deadline(); ends {
		longest = min(longest, time.Until(deadline))
	}
	pushback := int64(-1)
	if wait <= longest {
		pushback = wait.Milliseconds()
	}
	// In a test without a server there is no trailer to set.
	_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(pushback, 10)))
}
