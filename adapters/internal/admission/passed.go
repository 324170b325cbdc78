package admission

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit"
)

// state is what the context of a request says of the limits around its handler.
type state struct {
	decisions []pglimit.Decision // of all limits so far, the outermost first
	failed    *atomic.Bool       // shared by all of them

	// Of the nearest one:
	own     int // index of the first of its decisions
	limiter *pglimit.Limiter
	settled *atomic.Bool
}

type key struct{}

func stateOf(ctx context.Context) state {
	s, _ := ctx.Value(key{}).(state)
	return s
}

// With returns the context with the decisions of the limiter after those of outer limits.
func With(ctx context.Context, limiter *pglimit.Limiter, decisions []pglimit.Decision) context.Context {
	s, marks := stateOf(ctx), new(struct{ failed, settled atomic.Bool })
	s.own, s.limiter, s.settled = len(s.decisions), limiter, &marks.settled
	s.decisions = append(slices.Clip(s.decisions), decisions...)
	if s.failed == nil {
		s.failed = &marks.failed
	}
	return context.WithValue(ctx, key{}, s)
}

// Decision of the nearest limit, the first if it has several.
func Decision(ctx context.Context) (d pglimit.Decision, ok bool) {
	s := stateOf(ctx)
	if len(s.decisions) == 0 {
		return d, false
	}
	return s.decisions[s.own], true
}

// Decisions of all limits, the outermost first.
func Decisions(ctx context.Context) []pglimit.Decision { return slices.Clone(stateOf(ctx).decisions) }

var errSettled = errors.New("the request was settled before: its tokens would come back, or be charged, twice")

// Settle charges what the request cost, of all decisions of the nearest limit.
func Settle(ctx context.Context, actual int64) (charged pglimit.Decision, err error) {
	s := stateOf(ctx)
	if len(s.decisions) == 0 || s.decisions[s.own].Source == pglimit.FromFallback { // nothing was taken
		return pglimit.Decision{}, nil
	}
	if s.settled.Swap(true) { // also if it then fails: what came of it may not be known
		return pglimit.Decision{}, errSettled
	}
	own := s.decisions[s.own:]
	return s.limiter.Settle(ctx, own[0], actual, own[1:]...)
}

// Settled says whether Settle was called for the nearest limit.
func Settled(ctx context.Context) bool {
	settled := stateOf(ctx).settled
	return settled != nil && settled.Load()
}

// Fail marks the request as failed, for all limits around it.
func Fail(ctx context.Context) {
	if failed := stateOf(ctx).failed; failed != nil {
		failed.Store(true)
	}
}

// Failed says whether the request was marked.
func Failed(ctx context.Context) bool {
	failed := stateOf(ctx).failed
	return failed != nil && failed.Load()
}
