package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/scenario"
	"github.com/pglimit/ratelimit/cmd/pglimit/internal/bench/wire"
	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// warmupKey is a key that no caller asks for.
const warmupKey = "warm-up"

// instance is a process of the service: a pool and a limiter.
type instance struct {
	pool    *pgxpool.Pool
	limiter *pglimit.Limiter
}

// openInstance connects all of the pool's connections and has each of them prepare
// the strategy's statements, so that the run measures neither.
func openInstance(ctx context.Context, base *pgxpool.Config, s scenario.Scenario, subject scenario.Subject, limiter, application string, meter *wire.Meter) (instance, error) {
	config := base.Copy()
	config.MaxConns = int32(s.Conns) //nolint:gosec // Validate bounds it
	config.MinConns = 0
	config.MaxConnLifetime = 24 * time.Hour // none is to be replaced in the middle of a run
	config.MaxConnIdleTime = 24 * time.Hour
	config.ConnConfig.RuntimeParams["application_name"] = application
	wire.Wrap(&config.ConnConfig.Config, meter, s.Latency)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return instance{}, err
	}
	in := instance{pool: pool}
	in.limiter, err = pglimit.New(pool, subject.Strategy, s.Limiter(limiter, subject))
	if err != nil {
		pool.Close()
		return instance{}, err
	}
	cost := subject.Costs[0].Tokens
	request := rate.Request{
		Limiter: limiter, Key: warmupKey, Limit: subject.Limit, Tokens: cost, Unit: cost, Durability: s.Durability,
	}
	other := request
	other.Key += " too"
	err = in.onEveryConn(ctx, s.Conns, func(conn *pgxpool.Conn) error {
		on := postgres.OnConn(conn.Conn())
		// One request and several may be different statements.
		_, err := subject.Strategy.Take(ctx, on, []rate.Request{request})
		if err == nil {
			_, err = subject.Strategy.Take(ctx, on, []rate.Request{request, other})
		}
		var pg *pgconn.PgError
		if errors.Is(err, pglimit.ErrNothingTaken) || errors.As(err, &pg) && pg.Code == "40P01" { // another connection was faster
			err = nil
		}
		return err
	})
	if err != nil {
		pool.Close()
		return instance{}, fmt.Errorf("%s: %w", subject.Strategy.Name(), err)
	}
	return in, nil
}

// close gives leases back, and then closes the pool.
func (in instance) close(ctx context.Context) error {
	defer in.pool.Close()
	return in.limiter.Close(ctx)
}

// onEveryConn calls work with each connection of the pool. It opens them all at once, because with a distant server
// this takes longest.
func (in instance) onEveryConn(ctx context.Context, conns int, work func(*pgxpool.Conn) error) error {
	held := make([]*pgxpool.Conn, conns) // until the end: a connection that is free would be acquired again
	failed := make([]error, conns)
	var working sync.WaitGroup
	for i := range conns {
		working.Go(func() {
			conn, err := in.pool.Acquire(ctx)
			if err != nil {
				failed[i] = fmt.Errorf("connection %d of %d (conns and --instances say how many): %w", i+1, conns, err)
				return
			}
			held[i] = conn
			failed[i] = work(conn)
		})
	}
	working.Wait()
	for _, conn := range held {
		if conn != nil {
			conn.Release()
		}
	}
	for _, err := range failed {
		if err != nil {
			return err // one says enough
		}
	}
	return nil
}
