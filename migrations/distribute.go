package migrations

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/ratelimit/internal/postgres"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// Distribution says how the tables are distributed by Citus. Zero: they are not.
type Distribution struct {
	Nodes  int      `json:"nodes"`  // that have shards, such as 2
	Shards int      `json:"shards"` // of each table, such as 32
	Tables []string `json:"tables"` // such as "pglimit.token_bucket"
}

// String is such as "distributed over 2 nodes, 32 shards".
func (d Distribution) String() string {
	if len(d.Tables) == 0 {
		return "not distributed"
	}
	return fmt.Sprintf("distributed over %d nodes, %d shards", d.Nodes, d.Shards)
}

// ErrNoCitus: this database has no Citus that can distribute the tables. The error says what to do.
var ErrNoCitus = errors.New("migrations: the tables cannot be distributed here")

// keyTables are distributed by key, the first one, then the others with it. The tables of the other strategies stay on
// the coordinator: their statements write in a with clause, which Citus does not send to another node.
var keyTables = append(slices.Clone(bucketTables[:3]), permitTables...)

// keyFunctions decide for one key: the node that has the key runs them.
var keyFunctions = []string{
	"token_bucket_take", "token_bucket_take_once", "token_bucket_take_or_block", "token_bucket_look",
	"token_bucket_give_back", "token_bucket_lease", "token_bucket_pause",
	"allow", "peek", "pause", "reset", "acquire", "renew", "release", manyKeysFunction,
}

// manyKeysFunction decides for several keys of one shard. Citus lets a function whose delegation is forced ask for one
// key only.
const manyKeysFunction = "token_bucket_take_shard"

var errNotAll = errors.New("migrations: this database has not all migrations of this release, or newer ones: migrate it first (Up, or pglimit migrate up)")

// Distribute distributes the buckets, IDs and blocks of the strategy token_bucket, and the permits, over the nodes of a
// Citus cluster, by key. Each decision about one key is then made by the node that has the key, and by its clock. db is
// a database of the coordinator, with Citus 13.2.1 or later. The tables of the other strategies, the limits, the
// schedule of the cleanup and the record of what is migrated stay on the coordinator.
//
// The rows move with the tables, in one transaction: nothing is forgotten. Takes of token_bucket wait meanwhile: some
// seconds for a million buckets. If another open transaction holds one of the tables, Distribute waits as
// [WithLockTimeout] says, lets the others go on, and tries again until the context ends.
//
// It puts other functions in the place of some (the folder functions/citus), brings all that decide to every node, and
// asks each node for a decision before it commits: if one fails, nothing has changed. What is distributed already is
// left alone. [Up] distributes what it adds to a database that is distributed.
func Distribute[D DB](ctx context.Context, db D, opts ...Option) error {
	return inTransaction(ctx, postgres.On(db), newOptions(opts), func(s *session) error {
		if err := s.distributable(ctx); err != nil {
			return err
		}
		applied, err := s.applied(ctx)
		switch {
		case err != nil:
			return err
		case len(applied) == 0:
			return errNoTables
		case applied.highest() != latest() || len(options{withoutExclusionRange: true}.pending(applied)) > 0:
			return errNotAll
		}
		if err := s.distribute(ctx, applied); err != nil {
			return err
		}
		return s.commit(ctx)
	})
}

// Undistribute brings the tables back to the coordinator, with their rows. It waits and blocks as [Distribute] does. It
// changes nothing where they are not distributed.
func Undistribute[D DB](ctx context.Context, db D, opts ...Option) error {
	return inTransaction(ctx, postgres.On(db), newOptions(opts), func(s *session) error {
		d, err := readDistribution(ctx, s.tx)
		if err == nil && len(d.Tables) > 0 {
			err = s.undistribute(ctx, d)
		}
		if err == nil { // also where no table is: a dump that is restored elsewhere has the functions
			err = s.takeBackFunctions(ctx)
		}
		if err != nil {
			return err
		}
		return s.commit(ctx)
	})
}

func (s *session) undistribute(ctx context.Context, d Distribution) error {
	if err := s.distributable(ctx); err != nil {
		return err
	}
	_, err := s.tx.Exec(ctx, "lock table "+strings.Join(d.Tables, ", ")+" in access exclusive mode")
	var ofViews []string
	if err == nil {
		err = s.tx.Row(ctx, rightsOfViews, nil, &ofViews)
	}
	if err == nil {
		err = s.execEach(ctx, "select pg_catalog.undistribute_table('%s'::regclass)", d.Tables)
	}
	if err == nil {
		err = s.planAsBefore(ctx)
	}
	if err == nil {
		err = s.execEach(ctx, "%s", ofViews)
	}
	if err != nil {
		return failDistribute("cannot bring the tables back to the coordinator", err)
	}
	s.done = append(s.done, func() { s.log.InfoContext(ctx, "pglimit: tables are not distributed any more", "tables", d.Tables) })
	return nil
}

// takeBackFunctions puts the functions of one server back.
func (s *session) takeBackFunctions(ctx context.Context) error {
	applied, err := s.applied(ctx)
	if err != nil || len(applied) == 0 {
		return err
	}
	if err := s.dropMore(ctx); err != nil {
		return err
	}
	_, _, err = s.putFunctions(ctx, applied, false)
	return err
}

// dropMore drops the functions that only a distributed schema has.
func (s *session) dropMore(ctx context.Context) error {
	var names []string
	for _, f := range ownFunctions(true)[len(ownFunctions(false)):] {
		names = append(names, f.name)
	}
	if err := s.execEach(ctx, dropAll, names); err != nil {
		return explain(ctx, s.tx, "cannot drop the functions of distributed tables", err)
	}
	return nil
}

// rightsOfViews are statements that give our views the comments and rights that they have. Citus makes the views of a
// table again when it brings that back, without them.
const rightsOfViews = `
	select coalesce(pg_catalog.array_agg(s.statement), '{}')
	from (
		select pg_catalog.format('comment on view pglimit.%I is %L', c.relname, pg_catalog.obj_description(c.oid, 'pg_class')) as statement
		from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit'
		where c.relkind = 'v' and pg_catalog.obj_description(c.oid, 'pg_class') is not null
		union all
		select pg_catalog.format('grant %s on pglimit.%I to %s', a.privilege_type, c.relname, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end)
			|| case when a.is_grantable then ' with grant option' else '' end
		from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit'
		cross join lateral pg_catalog.aclexplode(c.relacl) a
		where c.relkind = 'v'
	) s`

// ReadDistribution says how the tables of this database are distributed. It only reads, and needs no right.
func ReadDistribution[D DB](ctx context.Context, db D) (Distribution, error) {
	on := postgres.On(db)
	if on == nil {
		return Distribution{}, errNoPool
	}
	return readDistribution(ctx, on)
}

func readDistribution(ctx context.Context, db rate.Session) (d Distribution, err error) {
	there, err := ask(ctx, db, citusExists)
	if err == nil && there {
		err = db.Row(ctx, `
			select coalesce(pg_catalog.array_agg('pglimit.' || t.name order by t.place), '{}'), coalesce(pg_catalog.max(s.shards), 0), coalesce(pg_catalog.max(s.nodes), 0)
			from pg_catalog.unnest($1::text[]) with ordinality t (name, place)
			join pg_catalog.pg_class c on c.relname = t.name
			join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit'
			join pg_catalog.pg_dist_partition p on p.logicalrelid = c.oid and p.partmethod = 'h'
			cross join lateral (
				select pg_catalog.count(distinct s.shardid) as shards, pg_catalog.count(distinct l.groupid) as nodes
				from pg_catalog.pg_dist_shard s join pg_catalog.pg_dist_placement l on l.shardid = s.shardid
				where s.logicalrelid = c.oid
			) s`, []any{tableNames(keyTables)}, &d.Tables, &d.Shards, &d.Nodes)
	}
	if err != nil {
		return Distribution{}, fail("cannot read how the tables are distributed", err)
	}
	return d, nil
}

const citusExists = `select exists (select from pg_catalog.pg_extension where extname = 'citus')`

// The versions of Citus from this one on lock the metadata while they send it, as this needs.
var leastCitus = [3]int{13, 2, 1}

// distributable says why the tables of this database cannot be distributed.
func (s *session) distributable(ctx context.Context) error {
	there, err := ask(ctx, s.tx, citusExists)
	if err != nil {
		return fail("cannot look for the extension citus", err)
	}
	if !there {
		return fmt.Errorf("%w: this database has no extension citus: connect to the coordinator of a Citus cluster, and run \"create extension citus\" in this database on each node", ErrNoCitus)
	}
	var version string
	var coordinator, listed bool
	var unready string
	var nodes int
	err = s.tx.Row(ctx, `
		select pg_catalog.citus_version(), (select l.groupid = 0 from pg_catalog.pg_dist_local_group l),
			exists (select from pg_catalog.pg_dist_node where groupid = 0),
			coalesce((select pg_catalog.string_agg(nodename || ':' || nodeport, ', ') from pg_catalog.pg_dist_node
				where noderole = 'primary' and not (isactive and hasmetadata and metadatasynced)), ''),
			(select pg_catalog.count(*) from pg_catalog.pg_dist_node where noderole = 'primary' and isactive and shouldhaveshards)`,
		nil, &version, &coordinator, &listed, &unready, &nodes)
	if err != nil {
		return fail("cannot read the nodes of Citus", err)
	}
	number, least := citusVersion(version), leastCitus
	switch {
	case slices.Compare(number[:], least[:]) < 0:
		return fmt.Errorf("%w: this is Citus %d.%d.%d: it must be %d.%d.%d or later", ErrNoCitus, number[0], number[1], number[2], least[0], least[1], least[2])
	case !coordinator:
		return errWorker
	case !listed:
		return fmt.Errorf("%w: the coordinator is not among the nodes, so workers cannot ask it: run \"select citus_set_coordinator_host('HOST', PORT)\" there", ErrNoCitus)
	case unready != "":
		return fmt.Errorf("%w: nodes are not active or lack metadata: %s: run \"select start_metadata_sync_to_all_nodes()\" on the coordinator, or citus_activate_node", ErrNoCitus, unready)
	case nodes == 0:
		return fmt.Errorf("%w: no node may have shards: add workers with \"select citus_add_node('HOST', PORT)\"", ErrNoCitus)
	}
	return nil
}

// citusVersion reads "Citus 13.2.2 on x86_64-pc-linux-gnu, ...". It is zero if that cannot be read.
func citusVersion(text string) (number [3]int) {
	fields := strings.Fields(text)
	if len(fields) < 2 {
		return number
	}
	for i, part := range strings.SplitN(fields[1], ".", 3) {
		digits := strings.TrimRight(part, "abcdefghijklmnopqrstuvwxyz-") // 14.0devel
		number[i], _ = strconv.Atoi(digits)
	}
	return number
}

// errWorker: what is migrated is known, and can be changed, on the coordinator only.
var errWorker = fmt.Errorf("%w: this node is a worker of Citus: connect to the coordinator", ErrNoCitus)

func notAWorker(ctx context.Context, db rate.Session) error {
	there, err := ask(ctx, db, citusExists)
	if err == nil && there {
		if there, err = ask(ctx, db, "select exists (select from pg_catalog.pg_dist_local_group where groupid <> 0)"); err == nil && there {
			err = errWorker
		}
	}
	return err
}

// distribute distributes what is not distributed yet.
func (s *session) distribute(ctx context.Context, applied appliedList) error {
	before, err := readDistribution(ctx, s.tx)
	if err != nil {
		return err
	}
	all := ownFunctions(true)
	there, err := ask(ctx, s.tx, "select pg_catalog.to_regproc('pglimit."+marker+"') is not null")
	if err == nil && !there {
		_, err = s.tx.Exec(ctx, all[slices.IndexFunc(all, func(f function) bool { return f.name == marker })].text)
	}
	if err != nil {
		return failDistribute("cannot make function pglimit."+marker, err)
	}
	put, _, err := s.putFunctions(ctx, applied, true)
	if err != nil {
		return err
	}
	var todo []string
	err = s.tx.Row(ctx, `
		select coalesce(pg_catalog.array_agg('pglimit.' || t.name order by t.place), '{}')
		from pg_catalog.unnest($1::text[]) with ordinality t (name, place)
		join pg_catalog.pg_class c on c.relname = t.name and c.relkind = 'r'
		join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname = 'pglimit'`, []any{tableNames(keyTables)}, &todo)
	if err != nil {
		return fail("cannot read which tables there are", err)
	}
	first := keyTables[0]
	todo = slices.DeleteFunc(todo, func(name string) bool { return slices.Contains(before.Tables, name) })
	if len(todo) > 0 {
		// Lock all of them first, so that none is moved in vain.
		_, err = s.tx.Exec(ctx, "lock table "+strings.Join(todo, ", ")+" in access exclusive mode")
	}
	for _, name := range todo {
		with := "pglimit." + first.name
		if name == with {
			with = "none"
		}
		if err == nil {
			_, err = s.tx.Exec(ctx, "select pg_catalog.create_distributed_table($1::text::regclass, 'key', colocate_with => $2::text)", name, with)
		}
		if err == nil { // its rows are copied: they are still in the table of the coordinator
			_, err = s.tx.Exec(ctx, "select pg_catalog.truncate_local_data_after_distributing_table($1::text::regclass)", name)
		}
	}
	if err != nil {
		return failDistribute("cannot distribute the tables", err)
	}
	brought, err := s.bring(ctx, all)
	delegated := 0
	if err == nil {
		delegated, err = s.delegate(ctx)
	}
	if err != nil {
		return failDistribute("cannot distribute the functions", err)
	}
	if len(todo)+len(put)+brought+delegated == 0 {
		return nil
	}
	s.done = append(s.done, func() {
		s.log.InfoContext(ctx, "pglimit: tables are distributed now", "tables", todo, "functions", delegated)
	})
	return s.askNodes(ctx)
}

var calledFunction = regexp.MustCompile(`\bpglimit\.(\w+)\(`)

// bring makes all nodes have the functions that decide, and those that they call, also a node that is added later:
// Citus brings by itself only what was made after its extension. What has to do with a table of the coordinator stays
// there. It returns how many it has brought.
func (s *session) bring(ctx context.Context, all []function) (n int, err error) {
	needed := append(slices.Clone(keyFunctions), marker)
	for i := 0; i < len(needed); i++ {
		for _, f := range all {
			if f.name != needed[i] {
				continue
			}
			for _, called := range calledFunction.FindAllStringSubmatch(f.text, -1) {
				if !slices.Contains(needed, called[1]) {
					needed = append(needed, called[1])
				}
			}
		}
	}
	var functions []string
	err = s.tx.Row(ctx, `
		select coalesce(pg_catalog.array_agg(p.oid::regprocedure::text order by p.oid), '{}')
		from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'pglimit'
		where p.proname = any ($1::text[])
			and not exists (select from pg_catalog.pg_dist_object o where o.classid = 'pg_catalog.pg_proc'::regclass and o.objid = p.oid)
			and not exists (
				select from pg_catalog.pg_depend d join pg_catalog.pg_type t on d.refclassid = 'pg_catalog.pg_type'::regclass and t.oid = d.refobjid and t.typrelid <> 0
				where d.classid = 'pg_catalog.pg_proc'::regclass and d.objid = p.oid
					and not exists (select from pg_catalog.pg_dist_partition q where q.logicalrelid = t.typrelid))`, []any{needed}, &functions)
	if err == nil {
		err = s.execEach(ctx, "select pg_catalog.create_distributed_function('%s'::regprocedure)", functions)
	}
	return len(functions), err
}

// askNodes asks each node that has keys for a decision about one of them, and undoes it.
func (s *session) askNodes(ctx context.Context) error {
	var nodes, keys []string
	err := s.tx.Row(ctx, `
		select pg_catalog.array_agg(k.node), pg_catalog.array_agg(k.key)
		from (
			select n.nodename || ':' || n.nodeport as node, pg_catalog.min(i::text) as key
			from pg_catalog.generate_series(1, 1000) i
			join pg_catalog.pg_dist_placement p on p.shardid = pg_catalog.get_shard_id_for_distribution_column('pglimit.token_bucket', i::text)
			join pg_catalog.pg_dist_node n on n.groupid = p.groupid and n.noderole = 'primary'
			group by 1
		) k`, nil, &nodes, &keys)
	if err == nil {
		_, err = s.tx.Exec(ctx, "savepoint asks")
	}
	if err != nil {
		return failDistribute("cannot ask the nodes", err)
	}
	for i, node := range nodes {
		for _, function := range []string{"allow('pglimit', $1::text, '1/s')", "acquire('pglimit', $1::text, 1)"} {
			if _, err := s.tx.Exec(ctx, "select pglimit."+function, keys[i]); err != nil {
				return failDistribute("the node "+node+" cannot decide", err)
			}
		}
	}
	if _, err := s.tx.Exec(ctx, "rollback to savepoint asks"); err != nil {
		return failDistribute("cannot undo what the nodes decided", err)
	}
	return nil
}

// delegate makes the functions that decide for one key run where that key is, also in a transaction of the caller: a
// bucket has one clock. It returns how many were not so before.
func (s *session) delegate(ctx context.Context) (n int, err error) {
	var functions, args []string
	err = s.tx.Row(ctx, `
		select coalesce(pg_catalog.array_agg(p.oid::regprocedure::text order by f.place), '{}'),
			coalesce(pg_catalog.array_agg(case when '_key' = any (p.proargnames) then '_key' else 'key' end order by f.place), '{}')
		from pg_catalog.unnest($1::text[]) with ordinality f (name, place)
		join pg_catalog.pg_proc p on p.proname = f.name
		join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'pglimit'
		left join pg_catalog.pg_dist_object o on o.classid = 'pg_catalog.pg_proc'::regclass and o.objid = p.oid
		where (o.distribution_argument_index is not null and p.proconfig::text like '%plan_cache_mode=%' and coalesce(o.force_delegation, false) <> (f.name = $3::text)
			and o.colocationid = (select d.colocationid from pg_catalog.pg_dist_partition d where d.logicalrelid = $2::text::regclass)) is not true`,
		[]any{keyFunctions, "pglimit." + keyTables[0].name, manyKeysFunction}, &functions, &args)
	for i, function := range functions {
		if err == nil {
			_, err = s.tx.Exec(ctx, "select pg_catalog.create_distributed_function($1::text::regprocedure, $2::text, colocate_with => $3::text, force_delegation => $4)",
				function, args[i], "pglimit."+keyTables[0].name, !ofManyKeys(function))
		}
		// A generic plan of Citus 13.2 never finds the plan of its shard that it has kept: each call plans again, and keeps
		// that, too.
		if err == nil && !ofManyKeys(function) { // which says itself how it is planned
			_, err = s.tx.Exec(ctx, "alter function "+function+" set plan_cache_mode = force_custom_plan")
		}
	}
	return len(functions), err
}

func ofManyKeys(function string) bool {
	return strings.HasPrefix(function, "pglimit."+manyKeysFunction+"(")
}

// planAsBefore undoes what delegate has set: on one server a generic plan is the cheaper one.
func (s *session) planAsBefore(ctx context.Context) error {
	var functions []string
	err := s.tx.Row(ctx, `
		select coalesce(pg_catalog.array_agg(p.oid::regprocedure::text), '{}')
		from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'pglimit'
		where p.proname = any ($1::text[]) and p.proconfig::text like '%plan_cache_mode=force_custom_plan%'`, []any{keyFunctions}, &functions)
	if err != nil {
		return err
	}
	return s.execEach(ctx, "alter function %s reset plan_cache_mode", functions)
}

// failDistribute says what to do about an error of Citus, if that is known.
func failDistribute(what string, err error) error {
	f := fail(what, err)
	if postgres.Is(err, postgres.InsufficientPrivilege) {
		f.advice = "only the owner of the tables may, or a superuser, who must exist on each node"
	}
	return f
}

func tableNames(tables []table) []string {
	var names []string
	for _, t := range tables {
		names = append(names, t.name)
	}
	return names
}
