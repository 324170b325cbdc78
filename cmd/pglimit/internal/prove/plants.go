//go:build unix

package prove

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"strconv"
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
	Planted bool   `json:"planted"` // false: the product as it is, for comparison, or it cannot be planted here
	Caught  bool   `json:"caught"`
	After   int64  `json:"decisions"` // until it was caught, or in all
	How     string `json:"how"`       // what the audit says
}

//go:embed plants/*.sql
var plantFiles embed.FS

// plants are files, or for the published constraint its schema.
var plants = []struct {
	name, file string
	limit      pglimit.Limit
	strategy   rate.Strategy // nil: public.take_in_order
}{
	{"nothing, for comparison", "", apiLimits["a"], strategies.TokenBucket{}},
	{"the clock read before the lock", "clock_before_lock.sql", apiLimits["a"], strategies.TokenBucket{}},
	{"read-then-write in one snapshot", "read_then_write.sql", apiLimits["a"], strategies.TokenBucket{}},
	{"a denial that forgets", "denial_forgets.sql", apiLimits["a"], strategies.TokenBucket{}},
	{"the published exclusion constraint", plantSchema, pglimit.Every(20 * time.Millisecond), published.Strategies(plantSchema)[1]},
	{"keys locked in the caller's order", "caller_order.sql", pglimit.PerSecond(100_000).WithBurst(100_000), nil},
}

const (
	plantSchema  = "planted"
	plantCallers = 16
	plantEnough  = 500 // decisions of the product as it is, several times what it takes to catch one that is not
)

// plants plants one fault after another.
func (p *prover) plants(ctx context.Context) (all []Plant, err error) {
	for i, of := range plants {
		planted := Plant{Name: of.name, Planted: i > 0, How: "not caught"}
		if of.file == plantSchema && !p.server.btree {
			planted.Planted, planted.How = false, "skipped: no btree_gist"
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
	err := p.server.do(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+name+" template "+database) // the workers have left it
		return err
	})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, p.server.URL(name)+"&deadlock_timeout=50ms&pool_max_conns="+strconv.Itoa(plantCallers))
	if err != nil {
		return err
	}
	defer pool.Close()
	if of.file == plantSchema {
		err = published.Create(ctx, postgres.OnPool(pool), plantSchema)
	} else if of.file != "" {
		text, _ := plantFiles.ReadFile("plants/" + of.file) // it is embedded
		_, err = pool.Exec(ctx, string(text))
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var mu sync.Mutex
	var events []audit.Event
	var asking sync.WaitGroup
	r := rate.Request{Limiter: "planted", Key: "k", Limit: of.limit, Tokens: 1, Unit: 1, Durability: rate.Durable}
	for range plantCallers {
		asking.Go(func() {
			for ctx.Err() == nil {
				var answers []rate.Decision
				var err error
				if of.strategy == nil {
					const inOrder = "select public.take_in_order(array(select chr(96+n) from generate_series(1, 6) n order by random()), $1, $2)"
					_, err = pool.Exec(context.WithoutCancel(ctx), inOrder, int64(of.limit.Token()), int64(of.limit.Window()))
				} else {
					answers, err = of.strategy.Take(context.WithoutCancel(ctx), postgres.OnPool(pool), []rate.Request{r})
				}
				mu.Lock()
				if err == nil && len(answers) > 0 && !answers[0].At.IsZero() {
					events = append(events, audit.FromDecision(r.Tokens, r.Unit, answers[0]))
				}
				over, deadlock := audit.Check(nil, of.limit, events).Over.Tokens, postgres.Is(err, "40P01")
				if !planted.Caught {
					planted.After++
				}
				if planted.Caught = planted.Caught || over > 0 || deadlock; deadlock {
					planted.How = "caught: a deadlock"
				} else if over > 0 {
					planted.How = fmt.Sprintf("caught: over by %d", over)
				}
				if planted.Caught || !planted.Planted && planted.After > plantEnough {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return nil
}
