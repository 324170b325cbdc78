-- Says that instances live: ids[i] runs limiters[i] and follows its rules. An instance calls it every ten seconds. Its
-- row is live for 30 seconds after that, for pglimit.limit_followers. Then it waits for nobody, and returns null.
--
-- Where it counts the others too, FailLocal can take its share of the limit while Postgres does not answer. Then it
-- calls every second, and its row is live for five seconds after that. heard: the turn of the answer to its last call;
-- 0: it has not heard it. Returns {"turn": n, "instances": {"id": [live instances of its limiter, whether it is
-- counted], …}}. Locks the row of instances_turn until the commit, which does not wait for the disk.
--
-- An instance that is counted takes 1 / instances of the limit, by the last answer that it heard. Together that is
-- never more than the limit:
--
--   - Calls have turns, in the order of that lock. So a call sees the row of each instance that called before.
--   - A new instance is counted when each older one has said that it heard an answer that was given after the new one
--     came. So the last answer that an instance heard has all others who are counted.
--   - The next call of another instance deletes a row that is no longer live. Then its instance is new when it calls
--     again.
--   - Time in which nobody calls hardly counts: the first call after an outage, or after a step of the clock to either
--     side, moves the rows of the limiter by it. So an outage, however long, makes no instance new.
--
-- What remains: an instance that is cut off alone for longer than five seconds has its share on top, until it is heard
-- of again.
create or replace function pglimit.instance_lives(
    limiters text[], ids text[], heard bigint, counts boolean default true
) returns text
language plpgsql set search_path = '' set row_security = off set jit = off as $$
#variable_conflict use_column
declare
    follows_ns constant bigint := 30000000000;
    live_ns constant bigint := 5000000000;
    usual_ns constant bigint := 1000000000; -- between two calls
    day_ns constant bigint := 86400000000000; -- after that the row of a process that crashed goes
    now_ns bigint;
    this_turn bigint;
begin
    if not instance_lives.counts then
        perform set_config('synchronous_commit', 'off', true);
        now_ns := pglimit.clock_ns();
        delete from pglimit.instances i where (i.limiter, i.id) in ( -- not rows that another call deletes now
            select o.limiter, o.id from pglimit.instances o where o.until_ns < now_ns - day_ns for update skip locked);
        insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
        select l.limiter, l.id, false, 0, 0, 0, now_ns + follows_ns from unnest(limiters, ids) l (limiter, id)
        on conflict (limiter, id) do update set until_ns = excluded.until_ns;
        return null;
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'pglimit: instances cannot be counted in a transaction that is %',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported',
            hint = 'It does not see those that called just before. '
                'Set default_transaction_isolation of the role to ''read committed''.';
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into pglimit.instances_turn as t (turn) values (1)
    on conflict (one) do update set turn = t.turn + 1 returning t.turn into this_turn;
    now_ns := pglimit.clock_ns(); -- behind the lock
    update pglimit.instances i set until_ns = greatest(1, i.until_ns + l.idle_ns - usual_ns)
    from (
        select o.limiter, now_ns - max(o.until_ns) + live_ns as idle_ns
        from pglimit.instances o where o.limiter = any (limiters) and o.counts group by o.limiter
    ) l
    where l.limiter = i.limiter and i.counts and (l.idle_ns > live_ns / 2 or l.idle_ns < -pglimit.step_ns());
    insert into pglimit.instances as i (limiter, id, counts, joined, heard, turn, until_ns)
    select l.limiter, l.id, true, this_turn, 0, this_turn, now_ns + live_ns from unnest(limiters, ids) l (limiter, id)
    on conflict (limiter, id) do update
    set heard = case when instance_lives.heard = i.turn then i.turn else i.heard end,
        turn = excluded.turn, until_ns = excluded.until_ns;
    delete from pglimit.instances i
    where i.until_ns <= now_ns and i.limiter = any (limiters) or i.until_ns < now_ns - day_ns;
    return jsonb_build_object('turn', this_turn, 'instances', (
        select jsonb_object_agg(i.id, jsonb_build_array(
            (select count(*) from pglimit.instances o where o.limiter = i.limiter and o.counts),
            not exists (select from pglimit.instances o
                where o.limiter = i.limiter and o.counts and o.joined < i.joined and o.heard <= i.joined)))
        from unnest(limiters, ids) l (limiter, id) join pglimit.instances i on i.limiter = l.limiter and i.id = l.id
    ));
end
$$;
