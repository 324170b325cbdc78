-- What makes token_bucket fast and lets tokens come back: takes that write first and
-- look only if there was nothing to grant, many buckets in one statement, leases, and
-- for all buckets the time when their row was made.
--
-- The functions of 00002 are made of the new ones: an old program, which calls them,
-- counts leases of a new one.

-- +goose Up
-- made_us: when the row was made, by whatever inserts it. Tokens that were taken before
-- are not given back to it: it has forgotten them.
--
-- room: a row is made with some, and the first update drops it. So pages hold few rows and
-- have room for many versions of them, and are pruned when a quarter is left: not at each
-- update, as where fillfactor alone leaves room, because pruning starts below it.
alter table pglimit.token_bucket
    add column granted bigint not null default 0,         -- by the last take: RETURNING shows the new row only
    add column leased bigint not null default 0,          -- tokens set aside, which do not flow back ...
    add column leased_until_us bigint not null default 0, -- ... until then: from then on they are taken
    add column made_us bigint not null default 0,
    add column room text collate "C";
alter table pglimit.token_bucket set (fillfactor = 75);
alter table pglimit.upsert add column made_us bigint not null default 0;
alter table pglimit.for_update_nowait add column made_us bigint not null default 0;
alter table pglimit.token_bucket alter column made_us set default pglimit.clock_us_v1();
alter table pglimit.upsert alter column made_us set default pglimit.clock_us_v1();
alter table pglimit.for_update_nowait alter column made_us set default pglimit.clock_us_v1();

-- +goose StatementBegin
-- settled_v1 where it is not simple: the limit has changed, or a lease has expired. Not
-- a single expression, so that the planner does not inline it: a plan that has to
-- prepare all of it takes longer than a take.
create function pglimit.settled_slowly_v1(
    debt bigint, at_us bigint, its_token_parts bigint, its_refill_parts bigint, leased bigint, leased_until_us bigint,
    now_us bigint, token_parts bigint, refill_parts bigint, burst bigint
) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if leased > 0 and leased_until_us <= now_us then
        debt := pglimit.drain_v1(debt, leased_until_us - at_us, its_refill_parts) + leased * its_token_parts;
        at_us := greatest(at_us, leased_until_us);
    end if;
    return pglimit.owed_v1(debt, at_us, its_token_parts, its_refill_parts, now_us, token_parts, refill_parts, burst);
end
$$;
-- +goose StatementEnd

-- What a bucket owes at now_us, in parts of a limit that may have changed: owed_v1, and
-- leases that have expired. Those that have not are not part of it.
create function pglimit.settled_v1(b pglimit.token_bucket, now_us bigint, token_parts bigint, refill_parts bigint, burst bigint) returns bigint
language sql immutable parallel safe
return case
    when b.token_parts = token_parts and b.refill_parts = refill_parts and b.leased = 0 and b.debt <= burst * token_parts
        then greatest(0, b.debt - least(greatest(0, now_us - b.at_us), b.debt / refill_parts + 1) * refill_parts)
    when b.debt is null then 0
    else pglimit.settled_slowly_v1(
        b.debt, b.at_us, b.token_parts, b.refill_parts, b.leased, b.leased_until_us, now_us, token_parts, refill_parts, burst)
    end;

-- Tokens that leases set aside still. No row (all null): none.
create function pglimit.set_aside_v1(b pglimit.token_bucket, now_us bigint) returns bigint
language sql immutable parallel safe
return case when b.leased_until_us > now_us then b.leased else 0 end;

-- Whole tokens that can be had. Negative where a limit became smaller than its leases.
create function pglimit.available_v1(b pglimit.token_bucket, now_us bigint, token_parts bigint, refill_parts bigint, burst bigint) returns bigint
language sql immutable parallel safe
return (burst * token_parts - pglimit.settled_v1(b, now_us, token_parts, refill_parts, burst)) / token_parts - pglimit.set_aside_v1(b, now_us);

-- +goose StatementBegin
-- How many tokens a bucket can grant to several requests, each in whole multiples of its
-- unit, in their order: those from first to last in the arrays.
create function pglimit.grantable_in_turn_v1(
    b pglimit.token_bucket, now_us bigint, token_parts bigint, refill_parts bigint, burst bigint,
    wants bigint[], units bigint[], first bigint, last bigint
) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    available bigint := greatest(0, pglimit.available_v1(b, now_us, token_parts, refill_parts, burst));
    granted bigint;
    total bigint := 0;
begin
    for i in first .. last loop
        granted := least(wants[i], available - total) / units[i] * units[i];
        total := total + granted;
    end loop;
    return total;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes want tokens from one bucket, or none. Zero wanted: only looks.
--
-- The updates decide by the row as it was last committed when they began, so a denial
-- locks and writes nothing; and anew, by the row as it is then, if they have to wait
-- for the row. Only the clock is older than the wait then: where it was long, what
-- was granted is dated anew, and what was denied is looked at again.
--
-- granted: want or 0. debt, at_us: the bucket after the decision, leases included.
create function pglimit.token_bucket_take_v2(
    _key text, _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint, want bigint, relaxed boolean,
    out granted bigint, out debt bigint, out at_us bigint
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
#variable_conflict use_variable
declare
    capacity constant bigint := _burst * _token_parts;
    wanted constant bigint := want * _token_parts;
    full_us constant bigint := capacity / _refill_parts + 1; -- the longest that a debt lasts
    now_us bigint := pglimit.clock_us_v1();
    late_us bigint;
    bucket pglimit.token_bucket;
begin
    -- The usual case: a row of this limit, of which no lease has expired. A short
    -- expression: to prepare one, which is done in each call, takes longer than to compute
    -- it. Not where even an update of nothing fails.
    if want > 0 and not pg_catalog.current_setting('transaction_read_only')::boolean then
        update pglimit.token_bucket b
        set debt = greatest(0, b.debt - least(full_us, greatest(0, now_us - b.at_us)) * _refill_parts) + wanted,
            at_us = greatest(b.at_us, now_us), granted = want, room = null
        where b.key = _key and b.limiter = _limiter
            and b.token_parts = _token_parts and b.refill_parts = _refill_parts and b.burst = _burst
            and (b.leased = 0 or b.leased_until_us > now_us)
            and greatest(0, b.debt - least(full_us, greatest(0, now_us - b.at_us)) * _refill_parts)
                <= capacity - wanted - least(b.leased, _burst) * _token_parts
        returning b.debt + b.leased * _token_parts, b.at_us into debt, at_us;
    end if;

    -- Else: look why, and do it. Again, where another was sooner.
    while debt is null loop
        now_us := pglimit.clock_us_v1();
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        if bucket.key is null then
            debt := 0;
            at_us := now_us;
        else
            debt := pglimit.settled_v1(bucket, now_us, _token_parts, _refill_parts, _burst)
                + least(pglimit.set_aside_v1(bucket, now_us), _burst) * _token_parts;
            at_us := greatest(bucket.at_us, now_us);
        end if;
        if want = 0 or debt > capacity - wanted then
            granted := 0;
            return;
        elsif bucket.key is null then
            insert into pglimit.token_bucket as b (key, limiter, debt, at_us, made_us, granted, room, token_parts, refill_parts, burst)
            values (_key, _limiter, wanted, now_us, now_us, want, repeat(' ', 80), _token_parts, _refill_parts, _burst)
            on conflict do nothing
            returning b.debt, b.at_us into debt, at_us;
        else
            update pglimit.token_bucket b
            set debt = pglimit.settled_v1(b, now_us, _token_parts, _refill_parts, _burst) + wanted,
                at_us = greatest(b.at_us, now_us),
                granted = want, room = null,
                leased = pglimit.set_aside_v1(b, now_us),
                token_parts = _token_parts, refill_parts = _refill_parts, burst = _burst
            where b.key = _key and b.limiter = _limiter
                and pglimit.available_v1(b, now_us, _token_parts, _refill_parts, _burst) >= want
            returning b.debt + b.leased * _token_parts, b.at_us into debt, at_us;
        end if;
    end loop;

    granted := want;
    if relaxed then
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
    end if;
    late_us := pglimit.clock_us_v1();
    if late_us > now_us + 10000 then
        -- It had to wait for long, for the row or for an insert that was rolled back. Dated
        -- as it is, it would come on top of what may be taken from now on.
        update pglimit.token_bucket b
        set debt = pglimit.settled_slowly_v1(
                b.debt - wanted, b.at_us, b.token_parts, b.refill_parts, b.leased, b.leased_until_us,
                late_us, _token_parts, _refill_parts, _burst) + wanted,
            at_us = greatest(b.at_us, late_us),
            leased = pglimit.set_aside_v1(b, late_us)
        where b.key = _key and b.limiter = _limiter
        returning b.debt + b.leased * _token_parts, b.at_us into debt, at_us;
    end if;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Undoes the takes of this transaction that have just been made from these buckets, whose
-- rows stay locked: to decide anew, by the clock as it is when nothing is left to wait for.
create function pglimit.token_bucket_undo_v1(_keys text[], _limiter text) returns void
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    update pglimit.token_bucket b
    set debt = b.debt - b.granted * b.token_parts, granted = 0
    from (select k.key, _limiter as limiter from unnest(_keys) k(key) offset 0) k
    where b.key = any (array[k.key]) and b.limiter = k.limiter;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes from many buckets of one limiter and limit, as token_bucket_take_v2 does from
-- one. The keys are distinct and in order, in which their rows are locked. Requests for
-- the key number i are those from lasts[i - 1] + 1 to lasts[i] in wants and units.
--
-- No deadlock: rows are locked in order. What is found missing then is inserted, and what
-- appeared or changed meanwhile is locked, out of that order, and so not waited for long:
-- where somebody else is at the same, nothing is taken, and the caller asks key by key
-- (SQLSTATE 55P03, lock_not_available).
--
-- Decided by the clock when all is locked: a take that had to wait is undone, while its row
-- stays locked, and made anew.
--
-- Returns the numbers of the keys, and for each what it was granted in all, and its
-- bucket after that, leases included.
create function pglimit.token_bucket_take_many_v2(
    _keys text[], lasts bigint[], wants bigint[], units bigint[],
    _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint, relaxed boolean,
    out numbers bigint[], out grants bigint[], out debts bigint[], out ats_us bigint[]
)
language plpgsql
set search_path = ''
-- One plan, whatever the sizes of batch and table: for each key, in order, a look into the
-- primary key. (A comparison with any(array[...]) cannot be joined the other way round,
-- which would be the plan of a table that is empty when it is made.) Making it takes as long
-- as taking from a hundred buckets.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    n constant bigint := cardinality(_keys);
    slack_us constant bigint := 10000 + 50 * n; -- more than a statement takes that waits for nobody, on a busy machine too
    capacity constant bigint := _burst * _token_parts;
    full_us constant bigint := capacity / _refill_parts + 1; -- the longest that a debt lasts
    usual boolean := cardinality(wants) = n and wants = units; -- one request for each key, for all it wants or nothing
    looks_first boolean := pg_catalog.current_setting('transaction_read_only')::boolean;
    todo bigint[]; -- numbers of the keys without a decision; null: all
    anew bigint[]; -- of those, the ones that were undone
    locked boolean := false; -- all that is to do
    new_numbers bigint[]; -- of keys that have no row
    new_grants bigint[];
    made_keys text[];
    patience text;
    now_us bigint;
    did record;
begin
    while coalesce(cardinality(numbers), 0) < n loop
        -- Take where there is something to take. Not where even an update of nothing fails:
        -- there, what can be decided is denied, or only looked at.
        now_us := pglimit.clock_us_v1();
        if looks_first then
            select null::bigint[] as numbers, null::bigint[] as grants, null::bigint[] as debts, null::bigint[] as ats_us into did;
            looks_first := false;
        elsif usual then
            -- Of rows of this limit, of which no lease has expired. A short expression: to
            -- prepare the other takes longer than to compute it for ten keys.
            with taken as (
                update pglimit.token_bucket b
                set debt = greatest(0, b.debt - least(full_us, greatest(0, now_us - b.at_us)) * _refill_parts) + k.want * _token_parts,
                    at_us = greatest(b.at_us, now_us), granted = k.want, room = null
                from (
                    select key, want, number, _limiter as limiter
                    from unnest(_keys, wants) with ordinality k(key, want, number)
                    offset 0
                ) k
                where b.key = any (array[k.key]) and b.limiter = k.limiter
                    and b.token_parts = _token_parts and b.refill_parts = _refill_parts and b.burst = _burst
                    and (b.leased = 0 or b.leased_until_us > now_us)
                    and greatest(0, b.debt - least(full_us, greatest(0, now_us - b.at_us)) * _refill_parts)
                        <= capacity - k.want * _token_parts - least(b.leased, _burst) * _token_parts
                returning k.number, b.granted, b.debt + b.leased * _token_parts as debt, b.at_us
            )
            select array_agg(number) as numbers, array_agg(granted) as grants, array_agg(debt) as debts, array_agg(at_us) as ats_us
            into did from taken;
        else
            with taken as (
                update pglimit.token_bucket b
                set debt = pglimit.settled_v1(b, now_us, _token_parts, _refill_parts, _burst)
                        + _token_parts * case when k.all_or_nothing then k.want else pglimit.grantable_in_turn_v1(b, now_us, _token_parts, _refill_parts, _burst, wants, units, k.first, k.last) end,
                    room = null,
                    granted = case when k.all_or_nothing then k.want else pglimit.grantable_in_turn_v1(b, now_us, _token_parts, _refill_parts, _burst, wants, units, k.first, k.last) end,
                    at_us = greatest(b.at_us, now_us),
                    leased = pglimit.set_aside_v1(b, now_us),
                    token_parts = _token_parts, refill_parts = _refill_parts, burst = _burst
                from (
                    select key, number, _limiter as limiter, coalesce(lasts[number - 1], 0) + 1 as first, last, wants[last] as want,
                        wants[last] = units[last] and coalesce(lasts[number - 1], 0) + 1 = last as all_or_nothing
                    from unnest(_keys, lasts) with ordinality k(key, last, number)
                    where todo is null or number = any (todo)
                    offset 0
                ) k
                where b.key = any (array[k.key]) and b.limiter = k.limiter and case
                    when k.all_or_nothing then pglimit.available_v1(b, now_us, _token_parts, _refill_parts, _burst) >= k.want
                    else pglimit.grantable_in_turn_v1(b, now_us, _token_parts, _refill_parts, _burst, wants, units, k.first, k.last) > 0
                end
                returning k.number, b.granted, b.debt + b.leased * _token_parts as debt, b.at_us
            )
            select array_agg(number) as numbers, array_agg(granted) as grants, array_agg(debt) as debts, array_agg(at_us) as ats_us
            into did from taken;
        end if;
        if did.numbers is not null then
            if relaxed then
                perform pg_catalog.set_config('synchronous_commit', 'off', true);
            end if;
            if not locked and pglimit.clock_us_v1() > now_us + slack_us then
                perform pglimit.token_bucket_undo_v1(array(select _keys[i] from unnest(did.numbers) i), _limiter);
                anew := did.numbers;
            else
                numbers := numbers || did.numbers;
                grants := grants || did.grants;
                debts := debts || did.debts;
                ats_us := ats_us || did.ats_us;
            end if;
        end if;
        exit when cardinality(numbers) = n;

        -- Look at the others: denied, new, or meanwhile to be had. If nobody had to be waited
        -- for, by the same clock as above, for which they were denied.
        todo := array(
            select number from unnest(coalesce(todo, array(select generate_series(1, n)))) number
            except select unnest(numbers || anew) order by 1);
        if pglimit.clock_us_v1() > now_us + slack_us then
            now_us := pglimit.clock_us_v1();
        end if;
        new_numbers := null;
        new_grants := null;
        if usual then
            -- A subquery for each key: a join could read the whole index instead.
            select array_agg(number), array_agg(wants[number]) into new_numbers, new_grants
            from unnest(todo) number
            where wants[number] <= _burst
                and (select true from pglimit.token_bucket b where b.key = _keys[number] and b.limiter = _limiter) is null;
            todo := case
                when cardinality(new_numbers) = cardinality(todo) then null
                else array(select unnest(todo) except select unnest(new_numbers) order by 1)
            end;
            usual := false;
        end if;
        if cardinality(todo) > 0 then
            with seen as (
                select number, b.debt is null as new,
                    pglimit.settled_v1(b, now_us, _token_parts, _refill_parts, _burst) + least(pglimit.set_aside_v1(b, now_us), _burst) * _token_parts as debt,
                    greatest(b.at_us, now_us) as at_us,
                    case
                        when not k.all_or_nothing then pglimit.grantable_in_turn_v1(b, now_us, _token_parts, _refill_parts, _burst, wants, units, k.first, k.last)
                        when pglimit.available_v1(b, now_us, _token_parts, _refill_parts, _burst) >= k.want then k.want
                        else 0
                    end as grantable
                from (
                    select number, _keys[number] as key, _limiter as limiter, coalesce(lasts[number - 1], 0) + 1 as first, lasts[number] as last,
                        wants[lasts[number]] as want,
                        wants[lasts[number]] = units[lasts[number]] and coalesce(lasts[number - 1], 0) + 1 = lasts[number] as all_or_nothing
                    from unnest(todo) number
                    offset 0
                ) k
                left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter = k.limiter
            )
            select
                array_agg(number) filter (where grantable = 0) as numbers,
                array_agg(0::bigint) filter (where grantable = 0) as grants,
                array_agg(debt) filter (where grantable = 0) as debts,
                array_agg(at_us) filter (where grantable = 0) as ats_us,
                array_agg(number) filter (where grantable > 0 and not new) as todo,
                array_agg(number) filter (where grantable > 0 and new) as new_numbers,
                array_agg(grantable) filter (where grantable > 0 and new) as new_grants
            into did from seen;
            numbers := numbers || did.numbers;
            grants := grants || did.grants;
            debts := debts || did.debts;
            ats_us := ats_us || did.ats_us;
            todo := did.todo;
            new_numbers := new_numbers || did.new_numbers;
            new_grants := new_grants || did.new_grants;
        end if;

        -- Make the new ones, each unless another's insert is sooner.
        if new_numbers is not null then
            if relaxed then
                perform pg_catalog.set_config('synchronous_commit', 'off', true);
            end if;
            patience := pg_catalog.current_setting('lock_timeout');
            if n > 1 then
                -- For each of them: together less than deadlock_timeout.
                perform pg_catalog.set_config('lock_timeout', greatest(1, least(100, 500 / cardinality(new_numbers))) || 'ms', true);
            end if;
            with made as (
                insert into pglimit.token_bucket as b (key, limiter, debt, at_us, made_us, granted, room, token_parts, refill_parts, burst)
                select _keys[number], _limiter, granted * _token_parts, now_us, now_us, granted, repeat(' ', 80), _token_parts, _refill_parts, _burst
                from unnest(new_numbers, new_grants) t(number, granted)
                order by number
                on conflict do nothing
                returning b.key
            )
            select array_agg(key) into made_keys from made;
            perform pg_catalog.set_config('lock_timeout', patience, true);
            select array_agg(number) as numbers, array_agg(granted) as grants, array_agg(granted * _token_parts) as debts, array_agg(now_us) as ats_us
            into did
            from unnest(new_numbers, new_grants) t(number, granted)
            where cardinality(made_keys) = cardinality(new_numbers) or _keys[number] = any (made_keys);
            todo := array(select unnest(todo || new_numbers) except select unnest(did.numbers) order by 1);
            numbers := numbers || did.numbers;
            grants := grants || did.grants;
            debts := debts || did.debts;
            ats_us := ats_us || did.ats_us;
            if pglimit.clock_us_v1() > now_us + slack_us then
                -- It had to wait: all that was granted, in this round or before.
                select array_agg(number) filter (where granted > 0) as granted,
                    array_agg(number) filter (where granted = 0) as numbers, array_agg(granted) filter (where granted = 0) as grants,
                    array_agg(debt) filter (where granted = 0) as debts, array_agg(at_us) filter (where granted = 0) as ats_us
                into did
                from unnest(numbers, grants, debts, ats_us) t(number, granted, debt, at_us);
                perform pglimit.token_bucket_undo_v1(array(select _keys[number] from unnest(did.granted) number), _limiter);
                anew := anew || did.granted;
                numbers := did.numbers;
                grants := did.grants;
                debts := did.debts;
                ats_us := did.ats_us;
            end if;
        end if;
        exit when cardinality(numbers) = n;

        -- Again with those that were undone, and those that are there by now: they must
        -- not be waited for, unless there is nothing else.
        if n > 1 and cardinality(todo) > (
            select count(*) from (
                select from (select _keys[number] as key, _limiter as limiter from unnest(todo) number offset 0) k
                join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter = k.limiter
                for no key update of b skip locked
            ) locked
        ) then
            raise exception 'somebody else takes from buckets that are new to this call'
                using errcode = 'lock_not_available', hint = 'Nothing was taken. Ask key by key.';
        end if;
        locked := n > 1 or anew is not null;
        todo := coalesce(todo, '{}') || anew;
        anew := null;
    end loop;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Takes want tokens in whole multiples of unit. For old programs.
create or replace function pglimit.token_bucket_take_v1(
    _key text, _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint,
    want bigint, unit bigint, relaxed boolean,
    out granted bigint, out debt bigint, out at_us bigint
)
language plpgsql
set search_path = ''
as $$
begin
    select t.grants[1], t.debts[1], t.ats_us[1] into granted, debt, at_us
    from pglimit.token_bucket_take_many_v2(array[_key], array[1], array[want], array[unit], _limiter, _token_parts, _refill_parts, _burst, relaxed) t;
end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- Settles a lease, if settle_tokens is not zero, and takes the next one, of want tokens
-- at most, and at most one in share of those that can be had.
--
-- A lease is part of the row's leased tokens until leased_until_us. It is settled by being
-- taken out of them: what was spent is debt from now on. One of which the row knows
-- nothing any more, because it has expired or the row was made after it, is left alone.
--
-- Leases of a bucket that are out at the same time expire together, when the first of them
-- does: else one that nobody settles would stay for as long as others go on. In the last
-- fifth of that time there are no new ones.
--
-- Locks the row, or makes it. Returns the tokens set aside, until when, and the bucket
-- after that.
create function pglimit.token_bucket_lease_v1(
    _key text, _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint,
    want bigint, share bigint, ttl_us bigint,
    settle_tokens bigint, settle_spent bigint, settle_at_us bigint, settle_until_us bigint, relaxed boolean,
    out granted bigint, out until_us bigint, out debt bigint, out at_us bigint
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    bucket pglimit.token_bucket;
    now_us bigint;
    set_aside bigint;
    settles boolean;
begin
    loop
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
        now_us := pglimit.clock_us_v1();
        at_us := greatest(now_us, bucket.at_us);
        debt := pglimit.settled_v1(bucket, now_us, _token_parts, _refill_parts, _burst);
        set_aside := pglimit.set_aside_v1(bucket, now_us);
        settles := settle_tokens > 0 and settle_until_us > now_us and settle_at_us >= bucket.made_us
            and settle_until_us = bucket.leased_until_us and set_aside >= settle_tokens;
        if settles then
            set_aside := set_aside - settle_tokens;
            debt := debt + settle_spent * _token_parts;
        end if;
        until_us := case when set_aside > 0 then bucket.leased_until_us else at_us + ttl_us end;
        granted := case
            when until_us - at_us < ttl_us / 5 then 0
            else greatest(0, least(want, ((_burst * _token_parts - debt) / _token_parts - set_aside) / share))
        end;
        set_aside := set_aside + granted;
        exit when granted = 0 and settles is not true;
        if relaxed then
            perform pg_catalog.set_config('synchronous_commit', 'off', true);
        end if;
        if bucket.key is null then
            insert into pglimit.token_bucket (key, limiter, debt, at_us, made_us, leased, leased_until_us, room, token_parts, refill_parts, burst)
            values (_key, _limiter, 0, at_us, at_us, granted, until_us, repeat(' ', 80), _token_parts, _refill_parts, _burst)
            on conflict do nothing;
            if found then
                now_us := pglimit.clock_us_v1();
                if now_us > at_us + 10000 then
                    -- It had to wait for an insert that was rolled back.
                    at_us := now_us;
                    until_us := now_us + ttl_us;
                    update pglimit.token_bucket b
                    set at_us = at_us, made_us = at_us, leased_until_us = until_us
                    where b.key = _key and b.limiter = _limiter;
                end if;
                exit;
            end if;
        else
            update pglimit.token_bucket b
            set debt = debt, at_us = at_us, leased = set_aside, leased_until_us = until_us, room = null,
                token_parts = _token_parts, refill_parts = _refill_parts, burst = _burst
            where b.key = _key and b.limiter = _limiter;
            exit;
        end if;
    end loop;
    debt := debt + least(set_aside, _burst) * _token_parts;
end
$$;
-- +goose StatementEnd

-- The state, for a person: as before, and leases count as taken.
create or replace view pglimit.buckets as
select
    b.strategy, b.limiter, b.key, b.tokens_left, b.burst,
    (b.refill_parts::numeric / b.token_parts * 1000000)::double precision as tokens_per_second,
    to_timestamp(b.at_us / 1000000.0) as last_taken_at,
    to_timestamp(pglimit.full_us_v1(b.debt, b.debt_us, b.refill_parts) / 1000000.0) as full_at
from (
    select 'token_bucket' as strategy, key, limiter, at_us, token_parts, refill_parts, burst,
        pglimit.available_v1(t, now_us, token_parts, refill_parts, burst) as tokens_left,
        case
            when leased = 0 then debt
            else pglimit.settled_v1(t, now_us, token_parts, refill_parts, burst) + pglimit.set_aside_v1(t, now_us) * token_parts
        end as debt,
        case when leased = 0 then at_us else greatest(at_us, now_us) end as debt_us
    from pglimit.token_bucket t cross join (select pglimit.clock_us_v1() as now_us offset 0) clock
    union all
    select strategy, key, limiter, at_us, token_parts, refill_parts, burst,
        burst - ceil(pglimit.owed_v1(debt, at_us, token_parts, refill_parts, pglimit.clock_us_v1(), token_parts, refill_parts, burst)::numeric
            / token_parts)::bigint,
        debt, at_us
    from (
        select 'upsert' as strategy, key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.for_update_nowait
    ) t
) b;

-- +goose Down
create or replace view pglimit.buckets as
select
    b.strategy, b.limiter, b.key,
    b.burst - ceil(pglimit.owed_v1(b.debt, b.at_us, b.token_parts, b.refill_parts, pglimit.clock_us_v1(), b.token_parts, b.refill_parts, b.burst)::numeric
        / b.token_parts)::bigint as tokens_left,
    b.burst,
    (b.refill_parts::numeric / b.token_parts * 1000000)::double precision as tokens_per_second,
    to_timestamp(b.at_us / 1000000.0) as last_taken_at,
    to_timestamp(pglimit.full_us_v1(b.debt, b.at_us, b.refill_parts) / 1000000.0) as full_at
from (
    select 'token_bucket' as strategy, key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.token_bucket
    union all
    select 'upsert', key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.upsert
    union all
    select 'for_update_nowait', key, limiter, debt, at_us, token_parts, refill_parts, burst from pglimit.for_update_nowait
) b;

-- +goose StatementBegin
create or replace function pglimit.token_bucket_take_v1(
    _key text, _limiter text, _token_parts bigint, _refill_parts bigint, _burst bigint,
    want bigint, unit bigint, relaxed boolean,
    out granted bigint, out debt bigint, out at_us bigint
)
language plpgsql
set search_path = ''
as $$
#variable_conflict use_variable
declare
    bucket pglimit.token_bucket;
    now_us bigint;
begin
    loop
        -- Look.
        now_us := pglimit.clock_us_v1();
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        at_us := greatest(now_us, bucket.at_us);
        debt := pglimit.owed_v1(
            bucket.debt, bucket.at_us, bucket.token_parts, bucket.refill_parts, now_us, _token_parts, _refill_parts, _burst);
        granted := pglimit.grantable_v1(want, unit, debt, _token_parts, _burst);
        if granted = 0 then
            return;
        end if;
        if relaxed then
            perform set_config('synchronous_commit', 'off', true);
        end if;

        if bucket.key is null then
            -- The first request of this key, unless another's insert is sooner.
            debt := granted * _token_parts;
            insert into pglimit.token_bucket as b (key, limiter, debt, at_us, token_parts, refill_parts, burst)
            values (_key, _limiter, debt, at_us, _token_parts, _refill_parts, _burst)
            on conflict do nothing;
            if found then
                -- Where it had to wait for an insert that was rolled back, it is later
                -- now: what flowed back meanwhile must not be credited.
                if pglimit.clock_us_v1() > at_us + 1000 then
                    at_us := pglimit.clock_us_v1();
                    update pglimit.token_bucket b set at_us = at_us where b.key = _key and b.limiter = _limiter;
                end if;
                return;
            end if;
        else
            -- Lock.
            select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
            if found then
                -- Decide.
                now_us := pglimit.clock_us_v1();
                at_us := greatest(now_us, bucket.at_us);
                debt := pglimit.owed_v1(
                    bucket.debt, bucket.at_us, bucket.token_parts, bucket.refill_parts, now_us, _token_parts, _refill_parts, _burst);
                granted := pglimit.grantable_v1(want, unit, debt, _token_parts, _burst);
                -- Write.
                if granted > 0 then
                    debt := debt + granted * _token_parts;
                    update pglimit.token_bucket b
                    set debt = debt, at_us = at_us, token_parts = _token_parts, refill_parts = _refill_parts, burst = _burst
                    where b.key = _key and b.limiter = _limiter;
                end if;
                return;
            end if;
        end if;
    end loop;
end
$$;
-- +goose StatementEnd

drop function pglimit.token_bucket_lease_v1(text, text, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, boolean);
drop function pglimit.token_bucket_take_many_v2(text[], bigint[], bigint[], bigint[], text, bigint, bigint, bigint, boolean);
drop function pglimit.token_bucket_undo_v1(text[], text);
drop function pglimit.token_bucket_take_v2(text, text, bigint, bigint, bigint, bigint, boolean);
drop function pglimit.grantable_in_turn_v1(pglimit.token_bucket, bigint, bigint, bigint, bigint, bigint[], bigint[], bigint, bigint);
drop function pglimit.available_v1(pglimit.token_bucket, bigint, bigint, bigint, bigint);
drop function pglimit.set_aside_v1(pglimit.token_bucket, bigint);
drop function pglimit.settled_v1(pglimit.token_bucket, bigint, bigint, bigint, bigint);
drop function pglimit.settled_slowly_v1(bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint, bigint);
alter table pglimit.for_update_nowait drop column made_us;
alter table pglimit.upsert drop column made_us;
alter table pglimit.token_bucket drop column granted, drop column leased, drop column leased_until_us, drop column made_us, drop column room;
alter table pglimit.token_bucket set (fillfactor = 50);
