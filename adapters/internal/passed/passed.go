// Package passed keeps in the context of a request by which decisions it was let through.
package passed

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pglimit/ratelimit/pglimit"
)

// state is what the limits around a handler have in common.
type state struct {
	decisions []pglimit.Decision // of all limits so far, the outermost first
	own       int                // index of the first of the nearest one
	failed    *atomic.Bool       // shared by all of them
}

type key struct{}

func stateOf(ctx context.Context) state {
	s, _ := ctx.Value(key{}).(state)
	return s
}

// With returns the context with the decisions behind those of limits outside.
func With(ctx context.Context, decisions []pglimit.Decision) context.Context {
	s := stateOf(ctx)
	s.own = len(s.decisions)
	s.decisions = append(slices.Clip(s.decisions), decisions...)
	if s.failed == nil {
		s.failed = new(atomic.Bool)
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
