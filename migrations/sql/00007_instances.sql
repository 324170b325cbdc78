-- Live instances: which processes run a limiter now and follow the table pglimit.limits, so that whoever sets a rule hears how
-- many will follow (pglimit.limit_followers). An instance calls pglimit.instance_lives every ten seconds; its row is live for
-- 30 seconds after that.
--
-- Where it counts the others too, FailLocal can take its share of the limit while Postgres does
-- not answer. Then it calls every second, and its row is live for five seconds after that.
--
-- An instance that is counted takes 1 / instances of the limit, by the last answer that it heard. Together that is never
-- more than the limit:
--
--   - Calls come one after another, by the row of instances_turn, which each locks until its commit, and have numbers in that
--     order (turn). So a call sees the row of each instance that called before.
--   - A newcomer is counted when each older instance has said that it heard an answer that was given after the newcomer
--     came. So the last answer that an instance heard has all others who are counted.
--   - The next call of another instance deletes a row that is no longer live. Then its instance is a newcomer when it calls again.
--   - Time in which nobody calls hardly counts: the first call after an outage, or after a step of the clock to either
--     side, moves the rows of the limiter by it. So an outage, however long, makes nobody a newcomer.
--
-- What remains: an instance that is cut off alone for longer than five seconds has its share on top, until it is heard of again.

-- +goose Up
create table pglimit.instances (
    limiter  text collate "C" not null,
    id       text collate "C" not null,
    counts   boolean not null, -- the others; else the next three columns are 0, and the others do not count it
    joined   bigint not null, -- the turn since when it has been live without a gap
    heard    bigint not null, -- the turn of the last answer that it says to have heard; 0: none
    turn     bigint not null, -- of its last call
    until_ns pglimit.nanoseconds not null, -- not live from here on
    primary key (limiter, id)
) using heap with (fillfactor = 50);

-- One row. Not an advisory lock, which any login may take, and keep.
create table pglimit.instances_turn (
    one  boolean primary key default true check (one),
    turn bigint not null -- of the last call
) using heap with (fillfactor = 50);

-- +goose StatementBegin
-- Says that instances live: ids[i] runs limiters[i]. heard: the turn of the answer to their last call; 0: they have not heard it.
-- Returns {"turn": n, "instances": {"id": [live instances of its limiter, whether it is counted], …}}. Waits for other calls,
-- until they commit; its own commit does not wait for the disk. If they do not count, heard is not read, it waits for nobody,
-- and returns null.
create function pglimit.instance_lives(limiters text[], ids text[], heard bigint, counts boolean default true) returns text
language plpgsql set search_path = '' set row_security = off set jit = off as $$
#variable_conflict use_column
declare
    follows_ns constant bigint := 30000000000;
    live_ns constant bigint := 5000000000;
    usual_ns constant bigint := 1000000000; -- between two calls
    now_ns bigint;
    this_turn bigint;
begin
    if not instance_lives.counts then
        perform set_config('synchronous_commit', 'off', true);
        now_ns := pglimit.clock_ns();
        delete from pglimit.instances i where (i.limiter, i.id) in ( -- of processes that crashed; not those that another call deletes now
            select o.limiter, o.id from pglimit.instances o where o.until_ns < now_ns - 86400000000000 for update skip locked);
        insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
        select l.limiter, l.id, false, 0, 0, 0, now_ns + follows_ns from unnest(limiters, ids) l (limiter, id)
        on conflict (limiter, id) do update set until_ns = excluded.until_ns;
        return null;
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'pglimit: instances cannot be counted in a transaction that is %', current_setting('transaction_isolation')
            using errcode = 'feature_not_supported', hint = 'It does not see those that called just before. Set default_transaction_isolation of the role to ''read committed''.';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pglimit.instances_turn as t (turn) values (1) on conflict (one) do update set turn = t.turn + 1 returning t.turn into this_turn;
    now_ns := pglimit.clock_ns(); -- behind the lock
    update pglimit.instances i set until_ns = greatest(1, i.until_ns + l.idle_ns - usual_ns)
    from (
        select o.limiter, now_ns - max(o.until_ns) + live_ns as idle_ns from pglimit.instances o where o.limiter = any (limiters) and o.counts group by o.limiter
    ) l
    where l.limiter = i.limiter and i.counts and (l.idle_ns > live_ns / 2 or l.idle_ns < -pglimit.step_ns());
    insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
    select l.limiter, l.id, true, this_turn, 0, this_turn, now_ns + live_ns from unnest(limiters, ids) l (limiter, id)
    on conflict (limiter, id) do update
    set heard = case when instance_lives.heard = i.turn then i.turn else i.heard end, turn = excluded.turn, until_ns = excluded.until_ns;
    delete from pglimit.instances i where i.until_ns <= now_ns and i.limiter = any (limiters) or i.until_ns < now_ns - 86400000000000; -- those of a limiter that nobody runs
    return jsonb_build_object('turn', this_turn, 'instances', (
        select jsonb_object_agg(i.id, jsonb_build_array(
            (select count(*) from pglimit.instances o where o.limiter = i.limiter and o.counts),
            not exists (select from pglimit.instances o where o.limiter = i.limiter and o.counts and o.joined < i.joined and o.heard <= i.joined)))
        from unnest(limiters, ids) l (limiter, id) join pglimit.instances i on i.limiter = l.limiter and i.id = l.id
    ));
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Who follows the rules of a limiter (null: of any) within two seconds. instances: that are live. servers: live instances of
-- "pglimit serve", which decide for each limiter of the table and have the name "(table)". known: the names of all limiters that
-- have a live instance, or a rule.
create function pglimit.limit_followers(limiter text, out instances bigint, out servers bigint, out known text[])
language sql stable set search_path = '' as $$
    select coalesce(sum(l.n) filter (where l.limiter <> '(table)' and (limit_followers.limiter is null or l.limiter = limit_followers.limiter)), 0)::bigint,
        coalesce(sum(l.n) filter (where l.limiter = '(table)'), 0)::bigint,
        coalesce(array_agg(l.limiter order by l.limiter) filter (where l.limiter <> '(table)'), '{}')
    from (
        select a.limiter, sum(a.n) as n from (
            select i.limiter, 1 as n from pglimit.instances i where i.until_ns > pglimit.clock_ns()
            union all select r.limiter, 0 from pglimit.limits r where r.limiter is not null and r.kind <> 'places'
        ) a group by a.limiter
    ) l
$$;
-- +goose StatementEnd

-- +goose Down
drop function pglimit.limit_followers;
drop function pglimit.instance_lives;
drop table pglimit.instances, pglimit.instances_turn;
