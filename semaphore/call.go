package semaphore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

var (
	//go:embed sql/acquire.sql
	acquireFile string
	//go:embed sql/renew.sql
	renewFile string
	//go:embed sql/release.sql
	releaseFile string
	//go:embed sql/holders.sql
	holdersFile string

	acquireSQL = postgres.Statement(acquireFile, "permits")
	renewSQL   = postgres.Statement(renewFile, "permits")
	releaseSQL = postgres.Statement(releaseFile, "permits")
	holdersSQL = postgres.Statement(holdersFile, "permits")
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
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Code, "40")
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

func (s *Semaphore) renew(ctx context.Context, key, holder string) (held bool, err error) {
	err = s.row(ctx, renewSQL, []any{s.config.Name, key, holder, s.config.TTL.Microseconds()}, &held)
	return held, err
}

func (s *Semaphore) release(ctx context.Context, key, holder string) (held bool, err error) {
	err = s.row(ctx, releaseSQL, []any{s.config.Name, key, holder}, &held)
	return held, err
}

func (s *Semaphore) holders(ctx context.Context, key string) ([]Holder, error) {
	var names []string
	var tokens, weights, since, expires []int64
	if err := s.row(ctx, holdersSQL, []any{s.config.Name, key}, &names, &tokens, &weights, &since, &expires); err != nil {
		return nil, err
	}
	holders := make([]Holder, len(names))
	for i := range names {
		holders[i] = Holder{Name: names[i], Weight: weights[i], Token: tokens[i], Since: time.Unix(0, since[i]), Expires: time.Unix(0, expires[i])}
	}
	return holders, nil
}
