package semaphore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

//go:embed sql
var files embed.FS

var (
	acquireSQL = postgres.StatementOf(files, "acquire.sql", "permits")
	renewSQL   = postgres.StatementOf(files, "renew.sql", "permits")
	releaseSQL = postgres.StatementOf(files, "release.sql", "permits")
	holdersSQL = postgres.StatementOf(files, "holders.sql", "permits")
)

// row sends a statement in its own transaction. If transactions are above READ COMMITTED by default, Postgres rolls it
// back when another one was faster. Then row sends it again, until its time is over.
func (s *Semaphore) row(ctx context.Context, sql string, args []any, into ...any) error {
	return s.explain(postgres.Serialized(ctx, s.session, func() error {
		return postgres.Again(ctx, s.session, 5, func() error { return s.session.Row(ctx, sql, args, into...) })
	}))
}

// noDataFound is the SQLSTATE of acquire if nothing says how many places there are.
const noDataFound = "P0002"

// explain is postgres.Explain plus ErrNotSet.
func (s *Semaphore) explain(err error) error {
	if postgres.Is(err, noDataFound) {
		return fmt.Errorf("%w: %w: set it for all keys with \"pglimit limits set %s --action places --limit 5 --note WHY\", or have Config.Places: %w", rate.ErrNothingTaken, ErrNotSet, s.config.Name, err)
	}
	return postgres.Explain(err)
}

// outrun says that Postgres undid a call because others were faster.
func outrun(err error) bool {
	return postgres.Is(err, postgres.SerializationFailure, postgres.DeadlockDetected)
}

// answer of Postgres to a call for a place.
type answer struct {
	permit *Permit       // nil: there was no place
	free   time.Duration // until a permit expires, at the latest
	doubt  string        // a holder that may or may not have a place
	err    error
}

// ask asks for a place. If ctx ends, the call continues up to its time limit, and releases the place that it gets.
func (s *Semaphore) ask(ctx context.Context, key string, weight int64) (p *Permit, free time.Duration, err error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if !s.begin() {
		return nil, 0, ErrClosed
	}
	answers := make(chan answer)
	go func() {
		defer s.work.Done()
		a := s.acquire(ctx, key, weight)
		if a.doubt != "" {
			defer func() {
				limited, cancel := s.limited(ctx)
				defer cancel()
				_, _ = s.release(limited, key, a.doubt)
			}()
		}
		select {
		case answers <- a:
		case <-ctx.Done():
			if a.permit != nil {
				_ = a.permit.Release(ctx)
			}
		}
	}()
	select {
	case a := <-answers:
		if a.permit != nil && ctx.Err() != nil {
			return nil, 0, errors.Join(ctx.Err(), a.permit.Release(ctx))
		}
		return a.permit, a.free, a.err
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

// begin work that Close waits for.
func (s *Semaphore) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Err() != nil {
		return false
	}
	s.work.Add(1)
	return true
}

func (s *Semaphore) acquire(ctx context.Context, key string, weight int64) answer {
	limited, cancel := s.limited(ctx)
	defer cancel()
	holder, sent := s.newHolder(), time.Now()
	var acquired bool
	var token, micros int64
	err := s.row(limited, acquireSQL, s.acquireArgs(key, weight, holder), &acquired, &token, &micros)
	switch {
	case errors.Is(err, rate.ErrNothingTaken):
		return answer{err: err, free: s.config.TTL}
	case err != nil:
		return answer{err: err, doubt: holder}
	case acquired:
		return answer{permit: s.newPermit(ctx, key, weight, token, holder, sent)}
	}
	return answer{free: time.Duration(micros) * time.Microsecond}
}

// newHolder returns a unique name.
func (s *Semaphore) newHolder() string { return s.prefix + strconv.FormatUint(s.number.Add(1), 36) }

func (s *Semaphore) acquireArgs(key string, weight int64, holder string) []any {
	var places, otherwise any = s.config.Places, nil
	if s.config.FromTable {
		places = nil
		if s.config.Places > 0 {
			otherwise = s.config.Places
		}
	}
	return []any{s.config.Name, key, places, weight, s.config.TTL.Microseconds(), holder, otherwise}
}

// limited returns the context of a call, which continues when the caller leaves.
func (s *Semaphore) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), s.config.Timeout)
}

func (s *Semaphore) release(ctx context.Context, key, holder string) (held bool, err error) {
	err = s.row(ctx, releaseSQL, []any{s.config.Name, key, holder}, &held)
	return held, err
}
