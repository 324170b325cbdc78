package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// warmupKey is a key that no caller asks for.
const warmupKey = "warm-up"

// instance is what a process of the service would have: a pool and a limiter.
type instance struct {
	pool    *pgxpool.Pool
	limiter *pglimit.Limiter
}

// openInstance connects all of the pool's connections and has each of them prepare
// the strategy's statements, so that the run measures neither.
func openInstance(ctx context.Context, base *pgxpool.Config, c Config, p plan, limiter, application string) (instance, error) {
	config := base.Copy()
	config.MaxConns = int32(c.Conns) //nolint:gosec // Validate bounds it
	config.MinConns = 0
	config.MaxConnLifetime = 24 * time.Hour // none is to be replaced in the middle of a run
	config.MaxConnIdleTime = 24 * time.Hour
	config.ConnConfig.RuntimeParams["application_name"] = application
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return instance{}, err
	}
	in := instance{pool: pool}
	in.limiter, err = pglimit.New(pool, p.strategy, c.limiter(limiter, p))
	if err != nil {
		pool.Close()
		return instance{}, err
	}
	request := pglimit.Request{
		Limiter: limiter, Key: warmupKey, Limit: p.limit, Tokens: p.cost, Unit: p.cost, Durability: c.Durability,
	}
	other := request
	other.Key += " too"
	err = in.onEveryConn(ctx, c.Conns, func(conn *pgxpool.Conn) error {
		session := rate.OnConn(conn.Conn())
		// One request and several may be different statements.
		_, err := p.strategy.Take(ctx, session, []pglimit.Request{request})
		if err == nil {
			_, err = p.strategy.Take(ctx, session, []pglimit.Request{request, other})
		}
		if errors.Is(err, pglimit.ErrNothingTaken) { // another connection was faster
			err = nil
		}
		return err
	})
	if err != nil {
		pool.Close()
		return instance{}, fmt.Errorf("%s: %w", p.strategy.Name(), err)
	}
	return in, nil
}

// close gives leases back, and then closes the pool.
func (in instance) close(ctx context.Context) error {
	defer in.pool.Close()
	return in.limiter.Close(ctx)
}

// onEveryConn calls work with each connection of the pool, and opens them as it goes.
func (in instance) onEveryConn(ctx context.Context, conns int, work func(*pgxpool.Conn) error) error {
	for i := range conns {
		conn, err := in.pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("connection %d of %d (see --conns and --instances): %w", i+1, conns, err)
		}
		defer conn.Release() // at the end: a connection that is free would be acquired again
		if err := work(conn); err != nil {
			return err
		}
	}
	return nil
}
