package strategies

import (
	"context"
	"errors"
	"testing"

	"github.com/pglimit/ratelimit/pglimit/rate"
)

// between answers nothing to any statement, as the functions of a table do that is just being distributed, or brought
// back: each says that it is for the other.
type between struct {
	rate.Session
	asked []string
}

func (*between) Autocommits() bool { return true }

func (b *between) Row(_ context.Context, sql string, _ []any, _ ...any) error {
	b.asked = append(b.asked, sql)
	return nil
}

func TestATableThatIsJustBeingDistributed(t *testing.T) {
	t.Parallel()
	b := new(between)
	ask := func(key string) rate.Request {
		return rate.Request{Limiter: "test", Key: key, Limit: rate.PerHour(5), Tokens: 1, Unit: 1}
	}
	decisions, err := TokenBucket{}.Take(t.Context(), b, []rate.Request{ask("a"), ask("b")})
	if !errors.Is(err, rate.ErrNothingTaken) || decisions != nil {
		t.Errorf("%+v, %v", decisions, err)
	}
	if len(b.asked) != 1 || b.asked[0] != tokenBucketTakeMany {
		t.Errorf("asked %q", b.asked)
	}
}
