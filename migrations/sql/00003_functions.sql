-- The functions and views, each as it stands in its file of the folder functions, in
-- an order in which each finds those that it uses. Generated: do not edit, change the
-- file in the folder and run "go generate ./migrations".

-- +goose Up

-- functions/clock_ns.sql
-- The database's clock: nanoseconds since 1970, in steps of a microsecond. Every decision
-- is dated by it. It may step back; no function here assumes the contrary.
create or replace function pglimit.clock_ns() returns bigint
language sql volatile parallel safe
return (date_part('epoch', clock_timestamp()) * 1000000)::bigint * 1000;

-- functions/step_ns.sql
-- A row that is dated more than 10 ms ahead of the clock was written before the clock stepped
-- back. (Less is no step: a statement may read the clock before another one does, and reach
-- the row after it.)
create or replace function pglimit.step_ns() returns bigint
language sql immutable parallel safe
return 10000000::bigint;

-- functions/buckets.sql
-- The state, for a person in psql:
--     select * from pglimit.buckets where limiter = 'api' and key = 'user:42';
-- Sums are numeric, so that no row can make the view fail with an overflow.
create or replace view pglimit.buckets as
select
    b.strategy, b.limiter, b.key,
    least(9223372036854775807, ceil(greatest(0, b.full_ns - greatest(b.now_ns, b.ahead_ns)) / b.token_ns))::bigint as tokens_owed,
    ceil(b.leased_ns / b.token_ns)::bigint as tokens_leased,
    b.token_ns / 1000000000.0 as seconds_per_token,
    to_timestamp(b.at_ns / 1000000000.0) as last_taken_at,
    to_timestamp((case when b.leased_ns > 0 then greatest(b.full_ns, b.until_ns) + b.leased_ns else b.full_ns end - greatest(0, b.ahead_ns - b.now_ns)) / 1000000000.0) as full_at
from (
    select t.*, now_ns, case when t.at_ns > now_ns + pglimit.step_ns() then t.at_ns else 0 end as ahead_ns
    from (select pglimit.clock_ns() as now_ns offset 0) clock
    cross join lateral (
        select 'token_bucket' as strategy, key, limiter, token_ns, at_ns,
            case when leased_ns > 0 and until_ns <= now_ns then greatest(full_ns, until_ns)::numeric + leased_ns else full_ns end as full_ns,
            case when leased_ns > 0 and until_ns > now_ns then leased_ns::numeric else 0 end as leased_ns, until_ns
        from pglimit.token_bucket
        union all
        select 'upsert', key, limiter, token_ns, at_ns, full_ns, 0, null from pglimit.upsert
        union all
        select 'for_update_nowait', key, limiter, token_ns, at_ns, full_ns, 0, null from pglimit.for_update_nowait
    ) t
) b;
comment on view pglimit.buckets is 'One row per bucket that was taken from and not swept since; a bucket without a row is full. exclusion_range has its own: pglimit.ranges';

-- functions/converted_full_ns.sql
-- Converts full_ns of a row to another price of a token. full_ns, its_token_ns (the old price)
-- and at_ns are the row's; now_ns is the clock; token_ns is the new price.
--
-- Used tokens stay used, as tokens, rounded up. Since at_ns they have been refilled at the faster
-- of both rates. Returns at most the largest bigint, which denies every request. Reckons in
-- numeric, because the product of a time and a price does not fit a bigint.
create or replace function pglimit.converted_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return least(9223372036854775807, greatest(now_ns, at_ns) + div(
    greatest(0, least(
        (full_ns - greatest(now_ns, at_ns)) * token_ns::numeric,
        (full_ns - at_ns) * token_ns::numeric - greatest(0, now_ns - at_ns) * its_token_ns::numeric
    )) + its_token_ns - 1, its_token_ns))::bigint;

-- functions/in_time.sql
-- +goose StatementBegin
-- Checks a row that was just inserted with the date at_ns. Returns true, or fails with SQLSTATE
-- 40001 if at_ns is more than 100 ms ago: a row that is dated too early would refill tokens for
-- the time that its insert waited, on top of its grant. Also fails if the clock has stepped back
-- since at_ns: the insert may have missed a row that was corrected after the step.
create or replace function pglimit.in_time(at_ns bigint) returns boolean
language plpgsql volatile
set search_path = ''
as $$
begin
    if pglimit.clock_ns() - at_ns not between -pglimit.step_ns() and 100000000 then
        raise exception 'pglimit: had to wait for another call' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask again.';
    end if;
    return true;
end
$$;
-- +goose StatementEnd

-- functions/in_turn.sql
-- +goose StatementBegin
-- Returns how many of the tokens that are there several requests get, in their order: each gets
-- as many as it wants and are left, in whole units. The requests are the elements first to last
-- of wants and units.
create or replace function pglimit.in_turn(there bigint, wants bigint[], units bigint[], first bigint, last bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = ''
as $$
declare
    rest bigint := there;
begin
    for i in first .. last loop
        if (wants[i] >= 0 and units[i] > 0) is not true then
            raise exception 'pglimit.in_turn: request % wants % in units of %', i, wants[i], units[i] using errcode = 'invalid_parameter_value';
        end if;
        rest := rest - least(wants[i], rest) / units[i] * units[i];
    end loop;
    return there - rest;
end
$$;
-- +goose StatementEnd

-- functions/ns_of.sql
-- The time in nanoseconds since 1970.
create or replace function pglimit.ns_of("time" timestamptz) returns bigint
language sql immutable parallel safe
return (extract(epoch from "time") * 1000000)::bigint * 1000;

-- functions/read_full_ns.sql
-- Returns when a bucket is full again, as of now_ns and at the price token_ns of a token. That is
-- full_ns of its row, converted if the row was written at another price (its_token_ns). Without
-- a row (nulls) the bucket is full: 0.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.read_full_ns(
    full_ns bigint, its_token_ns bigint, at_ns bigint, now_ns bigint, token_ns bigint
) returns bigint
language sql immutable parallel safe
return case
    when its_token_ns = token_ns then full_ns
    when full_ns is null then 0
    else pglimit.converted_full_ns(full_ns, its_token_ns, at_ns, now_ns, token_ns)
end;

-- functions/time_of.sql
-- The time that is ns nanoseconds after the beginning of 1970, rounded down to a microsecond:
-- timestamptz is no finer.
create or replace function pglimit.time_of(ns bigint) returns timestamptz
language sql immutable parallel safe
return timestamptz 'epoch' + (ns / 1000)::double precision * interval '1 microsecond';

-- functions/token_bucket_asked.sql
-- +goose StatementBegin
-- Returns the buckets of a call for many, numbered from 1, without those whose key is null: they
-- are done. limiters, tokens_ns, windows_ns and asks have an element for each key, or one for all.
--
-- A single select, so that the planner inlines it. It ends with "offset 0", so that it is read
-- once, in the order of the numbers.
create or replace function pglimit.token_bucket_asked(keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[])
returns table (number bigint, key text, limiter text, token_ns bigint, window_ns bigint, ask bigint)
language sql immutable parallel safe
begin atomic
    select u.number, u.key, coalesce(limiters[u.number], limiters[1]), coalesce(tokens_ns[u.number], tokens_ns[1]),
        coalesce(windows_ns[u.number], windows_ns[1]), coalesce(asks[u.number], asks[1])
    from unnest(keys) with ordinality u(key, number)
    where u.key is not null
    offset 0;
end;
-- +goose StatementEnd

-- functions/token_bucket_read.sql
-- +goose StatementBegin
-- Returns a row of token_bucket as of now_ns and at the price token_ns of a token: an expired
-- lease counts as spent when it expired, and another price in the row is converted. The row must
-- not be ahead of the clock by more than step_ns. Without a lease, its until_ns means nothing.
--
-- What does not fit a bigint becomes the largest one, which denies every request.
create or replace function pglimit.token_bucket_read(inout b pglimit.token_bucket, now_ns bigint, token_ns bigint)
language plpgsql immutable parallel safe
set search_path = ''
as $$
begin
    if b.leased_ns > 0 and coalesce(b.until_ns, 0) <= now_ns then
        b.full_ns := least(9223372036854775807, greatest(b.full_ns, b.until_ns)::numeric + b.leased_ns);
        b.at_ns := greatest(b.at_ns, b.until_ns);
        b.leased_ns := null;
    end if;
    b.full_ns := pglimit.read_full_ns(b.full_ns, b.token_ns, b.at_ns, now_ns, token_ns);
    b.leased_ns := nullif(pglimit.read_full_ns(b.leased_ns, b.token_ns, 0, 0, token_ns), 0); -- a debt of which nothing is refilled
    b.token_ns := token_ns;
    b.at_ns := greatest(b.at_ns, now_ns);
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_full_ns.sql
-- Returns when a bucket is full again, not counting leases that are out, as of now_ns and at the
-- price token_ns of a token. Null without a row (b is null): the bucket is full.
--
-- A single expression, so that the planner inlines it.
create or replace function pglimit.token_bucket_full_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case
    when b.token_ns <> token_ns or b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).full_ns
    else b.full_ns
end;

-- functions/token_bucket_lock.sql
-- +goose StatementBegin
-- Locks the row of a bucket and returns it. Waits for any call that holds the row. If there is
-- none, inserts the row of a full bucket, at the price _token_ns. If the clock has stepped back
-- since the row was written, the bucket owes now what it owed then: the row is corrected, once,
-- whether or not the request is granted.
--
-- Must be called with enable_seqscan off.
create or replace function pglimit.token_bucket_lock(_key text, _limiter text, _token_ns bigint, out bucket pglimit.token_bucket)
language plpgsql
set search_path = ''
as $$
begin
    loop
        select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter for no key update;
        exit when found;
        insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
        select _key, _limiter, clock.now_ns, _token_ns, clock.now_ns from (select pglimit.clock_ns() as now_ns offset 0) clock
        on conflict do nothing;
    end loop;
    -- The clock is read behind the lock: compared with an older time, any new row would be ahead.
    -- A row gets one reading of it: if it stepped back between two, the bucket would owe the step.
    if bucket.at_ns > pglimit.clock_ns() + pglimit.step_ns() then
        update pglimit.token_bucket b
        set full_ns = greatest(1, b.full_ns - (b.at_ns - clock.now_ns)), at_ns = clock.now_ns, room = null,
            until_ns = nullif(greatest(0, b.until_ns - (b.at_ns - clock.now_ns)), 0)
        from (select pglimit.clock_ns() as now_ns offset 0) clock where b.key = _key and b.limiter = _limiter
        returning b.* into bucket;
    end if;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_leased_ns.sql
-- Returns how many nanoseconds of the window leases set aside, as of now_ns and at the price
-- token_ns of a token. Null: nothing is leased.
create or replace function pglimit.token_bucket_leased_ns(b pglimit.token_bucket, now_ns bigint, token_ns bigint) returns bigint
language sql immutable parallel safe
return case when b.leased_ns is not null then (pglimit.token_bucket_read(b, now_ns, token_ns)).leased_ns end;

-- functions/token_bucket_there.sql
-- Returns how many tokens a bucket has, as of now_ns, at the price token_ns of a token and
-- window_ns of a burst. Without a row (b is null) the bucket is full. A lease of more than window_ns
-- counts as window_ns, which denies too, and no sum overflows.
create or replace function pglimit.token_bucket_there(b pglimit.token_bucket, now_ns bigint, token_ns bigint, window_ns bigint) returns bigint
language sql immutable parallel safe
return greatest(0, window_ns
    - greatest(0, pglimit.token_bucket_full_ns(b, now_ns, token_ns) - now_ns)
    - least(window_ns, coalesce(pglimit.token_bucket_leased_ns(b, now_ns, token_ns), 0))) / token_ns;

-- functions/token_bucket_lease.sql
-- +goose StatementBegin
-- Settles a lease of one bucket, if settle_tokens is not zero, and takes the next one.
--
-- A lease sets a part of the window, leased_ns, aside until until_ns: nobody else can take it and
-- it is not refilled. All leases of a bucket share the until_ns of the first. Otherwise a lease
-- that nobody settles would last as long as other processes take new ones. If less than a fifth
-- of ttl_ns is left until then, no new lease is granted. A lease that is not settled counts as
-- spent when it expires.
--
-- Settling takes the lease out of leased_ns, and the bucket owes the spent tokens from then on. It
-- uses the price of a token in the row, so that it loses nothing that was written under another
-- limit. A lease that the row does not know (it has expired, or the bucket was reset) is left alone.
--
-- _key, _limiter, _token_ns, _window_ns: as in token_bucket_take. want: tokens of the new
-- lease at most. share: at most one in that many of the tokens that are there. ttl_ns: how long
-- the new lease lasts at most. settle_tokens, settle_spent, settle_until_ns: the lease to settle,
-- how many of its tokens were spent, and when it expires.
--
-- Waits for the row, locks it, and inserts it if it is missing. Returns granted: tokens of the new
-- lease, which expires at bucket.until_ns. now_ns: the time of the decision. bucket: the row after it.
create or replace function pglimit.token_bucket_lease(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, share bigint, ttl_ns bigint,
    settle_tokens bigint, settle_spent bigint, settle_until_ns bigint,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off
as $$
declare
    seen pglimit.token_bucket;
begin
    if (want >= 0 and share > 0 and ttl_ns between 1 and 86400000000000 and _token_ns > 0 and _window_ns between _token_ns and 6400000000000000000
        and settle_spent between 0 and settle_tokens) is not true then
        raise exception 'token_bucket_lease: an argument is null, negative, zero or too large' using errcode = 'invalid_parameter_value';
    end if;
    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    now_ns := pglimit.clock_ns();

    if settle_tokens > 0 and bucket.until_ns = settle_until_ns and settle_until_ns > now_ns
        and settle_tokens::numeric * bucket.token_ns <= bucket.leased_ns then
        bucket.leased_ns := nullif(bucket.leased_ns - settle_tokens * bucket.token_ns, 0);
        bucket.full_ns := least(9223372036854775807, greatest(bucket.full_ns, now_ns) + settle_spent::numeric * bucket.token_ns);
        bucket.at_ns := greatest(bucket.at_ns, now_ns);
    end if;

    seen := pglimit.token_bucket_read(bucket, now_ns, _token_ns);
    seen.until_ns := case when seen.leased_ns > 0 then seen.until_ns else now_ns + ttl_ns end;
    granted := case
        when seen.until_ns - now_ns < ttl_ns / 5 then 0
        else least(want, pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns) / share)
    end;
    if granted > 0 then
        bucket := seen;
        bucket.leased_ns := coalesce(seen.leased_ns, 0) + granted * _token_ns;
    end if;
    -- If there was nothing to settle and nothing is granted, nothing has changed.
    update pglimit.token_bucket b
    set full_ns = bucket.full_ns, token_ns = bucket.token_ns, at_ns = bucket.at_ns,
        leased_ns = bucket.leased_ns, until_ns = case when bucket.leased_ns > 0 then bucket.until_ns end, room = null
    where b.key = _key and b.limiter = _limiter and b is distinct from bucket;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_look.sql
-- +goose StatementBegin
-- Returns how many of the tokens that are asked for each of many buckets can grant. A plain read:
-- locks nothing.
--
-- Each row is read as of now_ns, or as of its last write if that is later. It can be later by a
-- few milliseconds, if the row was written after now_ns was read. If it is later by more, the
-- clock has stepped back, and the result for this bucket means nothing.
--
-- Parameters are as for token_bucket_take_many; buckets whose key is null are left out.
-- row: null if the bucket has none.
--
-- A single select, so that the planner inlines it into the statement. There it finds one plan only:
-- for each bucket a look into the primary key. A comparison with any(array[...]) or between can
-- neither be hashed nor merged, and token_bucket_take_many does not allow a scan of the table. (For
-- the limiter, any(array[...]) would not do: up to PostgreSQL 16 a plan may leave it out of the look
-- into the index, and then reads all limiters of a key.)
create or replace function pglimit.token_bucket_look(
    now_ns bigint, _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[]
)
returns table (number bigint, key text, limiter text, token_ns bigint, granted bigint, "row" pglimit.token_bucket)
language sql stable parallel safe
begin atomic
    select k.number, k.key, k.limiter, k.token_ns,
        case
            when k.ask < 0 then pglimit.in_turn(there, wants, units, coalesce(lasts[k.number - 1], 0) + 1, lasts[k.number])
            when k.ask <= there then k.ask
            else 0
        end,
        b
    from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, asks) k
    left join pglimit.token_bucket b on b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter
    cross join lateral (select pglimit.token_bucket_there(b, greatest(now_ns, b.at_ns), k.token_ns, k.window_ns) as there) t;
end;
-- +goose StatementEnd

-- functions/token_bucket_take.sql
-- +goose StatementBegin
-- Takes from one bucket: want tokens in whole multiples of unit (all or nothing, if the two are
-- equal). If wants is not null, takes what several requests want, in turn.
--
-- It first looks without a lock, and denies if there is nothing to grant: such a denial locks and
-- writes nothing, and waits for nobody. Otherwise it takes the tokens that it saw: it inserts the
-- row, or updates it if the tokens are still there once the row is locked. If another call was
-- faster, or the wait for the lock was longer than 10 ms, it locks the row first, and decides again.
--
-- _token_ns: nanoseconds until one token is refilled. _window_ns: until a burst is refilled.
-- want, unit: checked, but otherwise ignored if wants is given.
-- wants, units: one element for each of several requests, or null.
-- impatient: gives up with SQLSTATE 55P03 after 20 ms if another call holds the row. Changes
-- lock_timeout until the transaction ends.
--
-- granted: tokens. now_ns: the time of the decision. bucket: the row after it (null: there is none).
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, wants bigint[], units bigint[], impatient boolean,
    out granted bigint, out now_ns bigint, out bucket pglimit.token_bucket
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
begin
    if (want > 0 and unit between 1 and want and _token_ns > 0 and unit <= _window_ns / _token_ns and _window_ns <= 6400000000000000000) is not true then
        raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %', want, unit, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;

    -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
    -- REINDEX.
    lock table pglimit.token_bucket in row exclusive mode;
    for try in 1 .. 2147483647 loop
        if try = 1 then
            select b.* into bucket from pglimit.token_bucket b where b.key = _key and b.limiter = _limiter;
        else
            bucket := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
        end if;
        now_ns := pglimit.clock_ns(); -- behind the look: an older time would date a denial before grants that it counts
        continue when bucket.at_ns > now_ns + pglimit.step_ns(); -- the lock moves such a row

        granted := pglimit.token_bucket_there(bucket, now_ns, _token_ns, _window_ns);
        granted := case when wants is null then least(want, granted) / unit * unit else pglimit.in_turn(granted, wants, units, 1, cardinality(wants)) end;
        exit when granted = 0;
        if bucket.key is null then
            insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
            values (_key, _limiter, now_ns + granted * _token_ns, _token_ns, now_ns)
            on conflict do nothing
            returning b.* into bucket;
        else
            update pglimit.token_bucket b
            set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, _token_ns), now_ns) + granted * _token_ns,
                token_ns = _token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
                leased_ns = pglimit.token_bucket_leased_ns(b, now_ns, _token_ns)
            where b.key = _key and b.limiter = _limiter
                and b.at_ns <= now_ns + pglimit.step_ns() and pglimit.token_bucket_there(b, now_ns, _token_ns, _window_ns) >= granted
                and pglimit.clock_ns() >= now_ns - pglimit.step_ns() -- else it stepped back while this waited
            returning b.* into bucket;
        end if;
        continue when bucket.key is null; -- another call was faster
        exit when try > 1 or pglimit.clock_ns() <= now_ns + 10000000;
        -- This call waited, for the row or for an insert that was rolled back. The grant is dated
        -- too early: tokens refilled during the wait would come on top of it. So undo it, and
        -- decide again.
        update pglimit.token_bucket b set full_ns = b.full_ns - granted * _token_ns where b.key = _key and b.limiter = _limiter;
    end loop;
end
$$;
-- +goose StatementEnd

-- functions/token_bucket_take_many.sql
-- +goose StatementBegin
-- Takes from many buckets in one call, all dated by one reading of the clock. It updates the rows
-- that can grant, inserts missing rows, and returns the rows of the denied buckets.
--
-- _keys; _limiters, _tokens_ns, _windows_ns: as for token_bucket_take, with an element for each
-- bucket; all but _keys may have one element for all buckets. Buckets are distinct, and in the
-- bytewise order of key and limiter.
-- asks, likewise: tokens, all or nothing. -1: several requests ask for the bucket, or one asks for
-- as much as there is. For bucket i these requests are the elements lasts[i - 1] + 1 to lasts[i] of
-- wants and units, and a look plans how much they get. (All three are null if no ask is -1.)
--
-- Locks the rows that it updates, in order, then the rows that it inserts, in order. A denial
-- locks nothing, unless another call took the tokens while this call waited for the row.
--
-- Gives up, and has taken nothing, with SQLSTATE 40001 if a bucket has changed meanwhile or is
-- named twice, its row is ahead of the clock, the clock stepped back, or 100 ms have passed since
-- now_ns; with 55P03 if another call held a row for 20 ms, or did not commit a missing row in
-- 20 ms (1 ms if this call has updated rows). Then call once more, or ask for each bucket by itself.
--
-- grants: tokens granted to each bucket (null: as many as asked for); wrong for denied buckets.
-- numbers: the buckets whose rows were updated, in order. fulls, ats: the new values of these rows.
-- leases: three numbers for each of these rows that has a lease: its bucket, leased_ns, until_ns.
-- denied: six numbers for each bucket that granted nothing: its number, and full_ns, token_ns,
-- at_ns, leased_ns and until_ns of its row (0: null, or there is no row).
-- All other buckets have a new row, which is full at now_ns + the price of what was granted.
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[], lasts bigint[], wants bigint[], units bigint[],
    out now_ns bigint, out grants bigint[], out numbers bigint[], out fulls bigint[], out ats bigint[], out leases bigint[], out denied bigint[]
)
language plpgsql
set search_path = ''
set lock_timeout = '20ms'
set plan_cache_mode = force_generic_plan -- one plan, whatever the sizes of batch and table
set enable_seqscan = off
as $$
declare
    n constant int := cardinality(_keys);
    changed boolean;
begin
    if (n >= 0 and array_position(_keys, null) is null and array_position(_limiters, null) is null
        and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and -1 <= all (asks) and 0 < all (_tokens_ns) and 6400000000000000000 >= all (_windows_ns)
        and (-1 <> all (asks) or cardinality(lasts) = n)) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    now_ns := pglimit.clock_ns();
    if -1 = any (asks) then
        -- The lock that a write takes, before the read: a read that becomes a write can deadlock with
        -- REINDEX.
        lock table pglimit.token_bucket in row exclusive mode;
        grants := array(select k.granted from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units) k order by k.number);
    end if;

    with updates as (
        update pglimit.token_bucket b
        set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, k.token_ns), now_ns) + k.ask * k.token_ns,
            token_ns = k.token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
            leased_ns = pglimit.token_bucket_leased_ns(b, now_ns, k.token_ns)
        from pglimit.token_bucket_asked(_keys, _limiters, _tokens_ns, _windows_ns, coalesce(grants, asks)) k
        where b.key = any (array[k.key]) and b.limiter between k.limiter and k.limiter and k.ask > 0 and b.at_ns <= now_ns + pglimit.step_ns()
            and pglimit.token_bucket_there(b, now_ns, k.token_ns, k.window_ns) >= k.ask
            and pglimit.clock_ns() <= now_ns + 100000000 -- later than that this fails below: lock no more rows
        returning k.number, b.full_ns, b.at_ns, b.leased_ns, b.until_ns
    )
    select coalesce(array_agg(u.number), '{}'), array_agg(u.full_ns), array_agg(u.at_ns),
        array_agg(array[u.number, u.leased_ns, u.until_ns]) filter (where u.leased_ns > 0)
    into numbers, fulls, ats, leases
    from updates u;

    if cardinality(numbers) < n then
        for i in 1 .. cardinality(numbers) loop
            _keys[numbers[i]] := null; -- this bucket is done
        end loop;
        -- A missing row is locked after the existing rows, which is not the order of the keys: if no
        -- call gave up, two calls could wait for each other.
        perform pg_catalog.set_config('lock_timeout', case when numbers = '{}' then '20ms' else '1ms' end, true);
        with rest as (
            select * from pglimit.token_bucket_look(now_ns, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units)
        ), made as (
            insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
            select r.key, r.limiter, now_ns + r.granted * r.token_ns, r.token_ns, now_ns
            from rest r
            where (r."row").key is null and r.granted > 0 and r.granted = coalesce(grants[r.number], r.granted)
            order by r.number
            on conflict do nothing
            returning 1
        )
        select count(*) filter (where r.granted > 0) > (select count(*) from made)
                -- A peek writes nothing, so one of a row that is ahead even now is answered: the clock stepped back.
                or bool_or((r."row").at_ns > now_ns + pglimit.step_ns()
                    and (coalesce(asks[r.number], asks[1]) <> 0 or (r."row").at_ns <= pglimit.clock_ns() + pglimit.step_ns())),
            array_agg(array_replace(array[
                r.number, (r."row").full_ns, (r."row").token_ns, (r."row").at_ns, (r."row").leased_ns, (r."row").until_ns
            ], null, 0::bigint)) filter (where r.granted = 0)
        into changed, denied
        from rest r;
    end if;
    if changed or pglimit.clock_ns() not between now_ns - pglimit.step_ns() and now_ns + 100000000 then
        raise exception 'pglimit: a bucket has changed meanwhile, or is held or named twice' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask once more, or for each bucket by itself.';
    end if;
end
$$;
-- +goose StatementEnd

-- +goose Down
drop function pglimit.token_bucket_take_many;
drop function pglimit.token_bucket_take;
drop function pglimit.token_bucket_look;
drop function pglimit.token_bucket_lease;
drop function pglimit.token_bucket_there;
drop function pglimit.token_bucket_leased_ns;
drop function pglimit.token_bucket_lock;
drop function pglimit.token_bucket_full_ns;
drop function pglimit.token_bucket_read;
drop function pglimit.token_bucket_asked;
drop function pglimit.time_of;
drop function pglimit.read_full_ns;
drop function pglimit.ns_of;
drop function pglimit.in_turn;
drop function pglimit.in_time;
drop function pglimit.converted_full_ns;
drop view pglimit.buckets;
drop function pglimit.step_ns;
drop function pglimit.clock_ns;
