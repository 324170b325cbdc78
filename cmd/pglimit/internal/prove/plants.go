//go:build unix

package prove

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/internal/published"
	"github.com/pglimit/ratelimit/pglimit"
	"github.com/pglimit/ratelimit/pglimit/rate"
	"github.com/pglimit/ratelimit/strategies"
	"github.com/pglimit/ratelimit/strategies/audit"
)

// Plant is a fault that was planted in the product, in a database of its own.
type Plant struct {
	Name    string `json:"name"`
	Planted bool   `json:"planted"` // false: the product as it is, for comparison
	Caught  bool   `json:"caught"`
	After   int64  `json:"decisions"` // until it was caught, or in all
	How     string `json:"how,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

//go:embed plants/*.sql
var plantFiles embed.FS

type take = func(ctx context.Context, pool *pgxpool.Pool, r rate.Request) ([]rate.Decision, error)

// plants are files, or for the published constraint its schema, and how a caller takes then.
var plants = []struct {
	name, file string
	limit      pglimit.Limit
	take       take
}{
	{"nothing, for comparison", "", apiLimits["a"], takeOne},
	{"the clock read before the lock", "clock_before_lock.sql", apiLimits["a"], takeOne},
	{"read-then-write in one snapshot", "read_then_write.sql", apiLimits["a"], takeOne},
	{"a denial that forgets", "denial_forgets.sql", apiLimits["a"], takeOne},
	{"the published exclusion constraint", plantSchema, pglimit.Every(20 * time.Millisecond), takePublished},
	{"keys locked in the caller's order", "caller_order.sql", pglimit.PerSecond(100_000).WithBurst(100_000), takeInOrder},
}

const (
	plantSchema   = "planted"
	plantCallers  = 16
	plantPatience = 20 * time.Second
	plantEnough   = 500 // decisions of the product as it is, several times what it takes to catch one that is not
)

func takeOne(ctx context.Context, pool *pgxpool.Pool, r rate.Request) ([]rate.Decision, error) {
	return strategies.TokenBucket{}.Take(ctx, postgres.OnPool(pool), []rate.Request{r})
}

func takePublished(ctx context.Context, pool *pgxpool.Pool, r rate.Request) ([]rate.Decision, error) {
	return published.Strategies(plantSchema)[1].Take(ctx, postgres.OnPool(pool), []rate.Request{r})
}

func takeInOrder(ctx context.Context, pool *pgxpool.Pool, r rate.Request) ([]rate.Decision, error) {
	keys := []string{"a", "b", "c", "d", "e", "f"}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] }) //nolint:gosec // a load
	_, err := pool.Exec(ctx, "select public.take_in_order($1, $2, $3)", keys, int64(r.Limit.Token()), int64(r.Limit.Window()))
	return nil, err
}

// plants plants one fault after another.
func (p *prover) plants(ctx context.Context) (all []Plant, err error) {
	for i, of := range plants {
		planted := Plant{Name: of.name, Planted: i > 0}
		if of.file == plantSchema && !p.server.btree {
			planted.Skipped = "the extension btree_gist is not installed"
		} else if err = cmp.Or(p.plant(ctx, i, &planted), ctx.Err()); err != nil {
			return all, fmt.Errorf("planting %s: %w", of.name, err)
		}
		all = append(all, planted)
	}
	return all, nil
}

func (p *prover) plant(ctx context.Context, i int, planted *Plant) error {
	of, name := plants[i], fmt.Sprintf("pglimit_prove_%d", i)
	p.Say("planted: " + of.name)
	if err := p.server.create(ctx, name); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(p.server.URL(name))
	if err != nil {
		return err
	}
	config.MaxConns = plantCallers
	config.ConnConfig.RuntimeParams["deadlock_timeout"] = "50ms"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch of.file {
	case "":
	case plantSchema:
		err = published.Create(ctx, postgres.OnPool(pool), plantSchema)
	default:
		text, _ := plantFiles.ReadFile("plants/" + of.file) // it is embedded
		_, err = pool.Exec(ctx, string(text), pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, plantPatience)
	defer cancel()
	var mu sync.Mutex
	var asked int64
	var events []audit.Event
	over := func(n int) int64 { return audit.Check(nil, of.limit, events[:n]).Over.Tokens }
	var callers sync.WaitGroup
	r := rate.Request{Limiter: "planted", Key: "k", Limit: of.limit, Tokens: 1, Unit: 1, Durability: rate.Durable}
	for range plantCallers {
		callers.Go(func() {
			for ctx.Err() == nil {
				answers, err := of.take(context.WithoutCancel(ctx), pool, r)
				mu.Lock()
				asked++
				if postgres.Is(err, "40P01") && !planted.Caught {
					planted.Caught, planted.After, planted.How = true, asked, "a deadlock"
					cancel()
				}
				for _, d := range answers {
					if err == nil && !d.At.IsZero() {
						events = append(events, audit.FromDecision(r.Tokens, r.Unit, d))
					}
				}
				mu.Unlock()
			}
		})
	}
	for ; ctx.Err() == nil; pass(ctx, 100*time.Millisecond) {
		mu.Lock()
		if over(len(events)) > 0 || !planted.Planted && asked > plantEnough {
			cancel()
		}
		mu.Unlock()
	}
	callers.Wait()
	planted.After = cmp.Or(planted.After, asked)
	if worst := over(len(events)); worst > 0 && !planted.Caught {
		planted.Caught, planted.How = true, fmt.Sprintf("over by %d", worst)
		planted.After = 1 + int64(sort.Search(len(events), func(n int) bool { return over(n+1) > 0 }))
	}
	return nil
}
