package pglimit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/internal/shards"
)

// Nodes are the nodes of the Citus cluster over which "pglimit distribute" has distributed the tables, for
// [Config].Nodes of any number of Limiters. Make them with [NodesFrom], and Close them after the Limiters.
//
// A Limiter with Nodes asks the node that has a key, on a pool of that node, and sends keys of one shard together. A
// call is one transaction on one node. A group of DoAll goes to the node of its first key, and may take from others
// too. Which node has which keys is read from the coordinator, once a second while requests come. If a shard has
// moved since, Citus passes the call on to its node. If a node cannot be reached, does not answer or refuses, the
// coordinator is asked for a second.
//
// A Limiter without Nodes finds out by itself that the tables are distributed. It sends keys of one shard together
// too, all through its own pool.
type Nodes struct {
	coordinator Session
	open        func(host string, port uint16) (Pool, error) // nil: of a Limiter without Nodes, which has one pool
	opened      []*pgxpool.Pool                              // by Nodes itself
	met         atomic.Bool                                  // somebody has met a distributed table. Before, a Limiter without Nodes reads nothing

	shards  atomic.Pointer[shards.Map] // nil: not read yet, or the tables are not distributed
	citus   bool                       // the catalog of Citus was seen
	read    atomic.Int64               // when the last reading began, since the start
	start   time.Time
	running sync.WaitGroup

	mu      sync.Mutex
	reading bool
	closed  bool
	nodes   map[string]*node // by address; nil: it cannot be opened
}

// node is where the keys of some shards are.
type node struct {
	session    Session
	restsUntil atomic.Int64 // is not asked before then, since the start, because it failed
}

// nodesEvery is how often the map of the shards is read, and how long a node that failed is not asked.
const nodesEvery = time.Second

// NodesFrom finds the nodes by the catalog of a coordinator. It does not connect.
//
// open makes the pool of a node, by its address in the table pg_dist_node, when it is first needed, and is not asked
// again if it fails. Requests wait for it, so it must not connect (pgxpool.NewWithConfig does not). The caller closes
// these pools. If open is nil, each node gets a pool like the coordinator's, which must be a *pgxpool.Pool, with its
// host and port; Close closes these.
func NodesFrom(coordinator Pool, open func(host string, port uint16) (Pool, error)) *Nodes {
	n := &Nodes{open: open, start: time.Now(), nodes: make(map[string]*node)}
	n.read.Store(int64(-nodesEvery))
	if isNil(coordinator) {
		return n
	}
	n.coordinator = postgres.OnPool(coordinator)
	if pool, is := coordinator.(interface{ Config() *pgxpool.Config }); is && open == nil {
		n.open = func(host string, port uint16) (Pool, error) { return n.openLike(pool.Config(), host, port) }
	}
	return n
}

// openLike opens a pool of that configuration, which it changes, on another server.
func (n *Nodes) openLike(config *pgxpool.Config, host string, port uint16) (Pool, error) {
	to := config.ConnConfig
	var fallbacks []*pgconn.FallbackConfig // of sslmode=prefer and the like; not those that name another server
	for _, fallback := range to.Fallbacks {
		if fallback.Host == to.Host && fallback.Port == to.Port {
			fallbacks = append(fallbacks, &pgconn.FallbackConfig{Host: host, Port: port, TLSConfig: named(fallback.TLSConfig, host)})
		}
	}
	to.Host, to.Port, to.TLSConfig, to.Fallbacks = host, port, named(to.TLSConfig, host), fallbacks
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err == nil {
		n.opened = append(n.opened, pool)
	}
	return pool, err
}

// named names the server in config itself: in a clone, pgx would not find the files of the client's certificate.
func named(config *tls.Config, host string) *tls.Config {
	if config != nil && config.ServerName != "" {
		config.ServerName = host
	}
	return config
}

// Close closes the pools that Nodes has opened.
func (n *Nodes) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.running.Wait()
	n.mu.Lock()
	opened := n.opened
	n.opened = nil
	n.mu.Unlock()
	for _, pool := range opened {
		pool.Close()
	}
}

// onOnePool are the Nodes of a Limiter without any.
func onOnePool(pool Session) *Nodes {
	return &Nodes{coordinator: pool, start: time.Now()}
}

func (n *Nodes) validate(strategy Strategy) error {
	switch {
	case n == nil:
		return nil
	case n.coordinator == nil:
		return &ConfigError{"Nodes", errors.New("has no pool: NodesFrom needs one of the coordinator, such as a *pgxpool.Pool")}
	case n.open == nil:
		return &ConfigError{"Nodes", errors.New("cannot make pools like that of the coordinator, which is no *pgxpool.Pool: give NodesFrom a function that opens them")}
	case strategy.Name() != "token_bucket":
		return &ConfigError{"Nodes", fmt.Errorf("is for strategies.TokenBucket{}: the table of %s stays on the coordinator", strategy.Name())}
	}
	return nil
}

// shardOf is the number of the key's shard.
func (n *Nodes) shardOf(key string) int {
	if m := n.shards.Load(); m != nil {
		number, _ := m.Of(key)
		return number
	}
	return 0
}

// of is the node that has the key. It is nil if that is not known, or the node failed lately.
func (n *Nodes) of(key string) *node {
	n.refresh()
	m := n.shards.Load()
	if m == nil || n.open == nil {
		return nil
	}
	_, shard := m.Of(key)
	if shard.Node == "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	of, known := n.nodes[shard.Node]
	if !known && !n.closed {
		if pool, err := n.openAt(shard.Node); err == nil && !isNil(pool) {
			of = &node{session: postgres.Sharded(postgres.OnPool(pool))}
		}
		n.nodes[shard.Node] = of
	}
	if of == nil || of.restsUntil.Load() > int64(time.Since(n.start)) {
		return nil
	}
	return of
}

func (n *Nodes) openAt(address string) (Pool, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	return n.open(host, uint16(number))
}

// refresh reads the map of the shards in the background, if it is old.
func (n *Nodes) refresh() {
	if n.open == nil && !n.met.Load() || time.Since(n.start)-time.Duration(n.read.Load()) < nodesEvery {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reading || n.closed {
		return
	}
	n.reading = true
	n.read.Store(int64(time.Since(n.start)))
	n.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), nodesEvery)
		defer cancel()
		if m, err := n.readMap(ctx); err == nil { // else what was read before holds
			n.shards.Store(m)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reading = false
	})
}

// readMap returns nil if the table is not distributed.
func (n *Nodes) readMap(ctx context.Context) (*shards.Map, error) {
	if !n.citus { // or each try would be an error in the server's log
		if err := n.coordinator.Row(ctx, "select pg_catalog.to_regclass('pg_catalog.pg_dist_shard') is not null", nil, &n.citus); err != nil || !n.citus {
			return nil, err
		}
	}
	var from, to []int32
	var hosts []string
	var ports []int32
	err := n.coordinator.Row(ctx, `
		select coalesce(pg_catalog.array_agg(s.shardminvalue::int order by s.shardminvalue::int), '{}'), coalesce(pg_catalog.array_agg(s.shardmaxvalue::int order by s.shardminvalue::int), '{}'),
			coalesce(pg_catalog.array_agg(coalesce(l.host, '') order by s.shardminvalue::int), '{}'), coalesce(pg_catalog.array_agg(coalesce(l.port, 0) order by s.shardminvalue::int), '{}')
		from pg_catalog.pg_dist_shard s
		left join lateral (
			select pg_catalog.min(n.nodename) as host, pg_catalog.min(n.nodeport) as port
			from pg_catalog.pg_dist_placement p
			join pg_catalog.pg_dist_node n on n.groupid = p.groupid and n.noderole = 'primary' and n.isactive and n.hasmetadata and n.metadatasynced
			where p.shardid = s.shardid and p.shardstate = 1
			having pg_catalog.count(*) = 1
		) l on true
		where s.logicalrelid = pg_catalog.to_regclass('pglimit.token_bucket')`, nil, &from, &to, &hosts, &ports)
	if err != nil || len(from) == 0 {
		return nil, err
	}
	for i, host := range hosts {
		if host != "" {
			hosts[i] = net.JoinHostPort(host, strconv.Itoa(int(ports[i])))
		}
	}
	return shards.NewMap(from, to, hosts)
}

// at calls f on a session of the node that has the key, if one is known that can be asked; else on the Limiter's own.
// straight: it was that of the node. A nil Nodes has none.
func (n *Nodes) at(ctx context.Context, key string, own Session, f func(Session) error) (straight bool, err error) {
	if n == nil {
		return false, f(own)
	}
	if of := n.of(key); of != nil {
		err := f(of.session)
		failed, again := nodeFailed(ctx, err)
		if failed {
			of.restsUntil.Store(int64(time.Since(n.start) + nodesEvery))
		}
		if !again {
			return true, err
		}
	}
	if n.distributed() {
		own = postgres.Sharded(own)
	}
	if err = f(own); errors.Is(err, postgres.ErrSharded) {
		n.met.Store(true)
		n.refresh()
	}
	return false, err
}

// distributed says that the tables are known to be distributed.
func (n *Nodes) distributed() bool { return n != nil && n.shards.Load() != nil }

// lane is the lane of a key, of so many; -1: any.
func (n *Nodes) lane(key string, lanes int) int {
	if n.open == nil && n.shards.Load() == nil {
		return -1
	}
	return shards.Part(key, lanes)
}

// nodeFailed says that the error is one of the node, or that it did not answer in time; and whether nothing was taken
// for certain.
func nodeFailed(ctx context.Context, err error) (failed, again bool) {
	var connect *pgconn.ConnectError
	refused := errors.Is(err, ErrReadOnly) || CauseOf(err).isSetUp()
	switch {
	case err == nil, errors.Is(ctx.Err(), context.Canceled): // who asked has left
		return false, false
	case refused, errors.As(err, &connect), pgconn.SafeToRetry(err):
		return true, ctx.Err() == nil
	}
	return ctx.Err() != nil || errors.Is(err, ErrUnavailable), false
}
