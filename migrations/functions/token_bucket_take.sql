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
-- relaxed: the commit need not wait for the disk. impatient: gives up with SQLSTATE 55P03
-- after 20 ms if another call holds the row. Both change settings until the transaction ends.
--
-- granted: tokens. now_ns: the time of the decision. The other results are the row after it, as
-- in the table (null: there is none).
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, wants bigint[], units bigint[],
    relaxed boolean, impatient boolean,
    out granted bigint, out now_ns bigint,
    out full_ns bigint, out token_ns bigint, out at_ns bigint, out leased_ns bigint, out until_ns bigint
)
language plpgsql
set search_path = ''
set enable_seqscan = off -- a plan that was made while the table was small must be good when it is large
as $$
declare
    cost_ns bigint;
    bucket pglimit.token_bucket;
begin
    if (want > 0 and unit between 1 and want and _token_ns > 0 and unit <= _window_ns / _token_ns and _window_ns <= 6400000000000000000) is not true then
        raise exception 'token_bucket_take: want % in units of %, token_ns %, window_ns %', want, unit, _token_ns, _window_ns
            using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    if relaxed then
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
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
        if granted = 0 then
            full_ns := bucket.full_ns; token_ns := bucket.token_ns; at_ns := bucket.at_ns; leased_ns := bucket.leased_ns; until_ns := bucket.until_ns;
            return;
        end if;
        cost_ns := granted * _token_ns;
        if bucket.key is null then
            insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
            values (_key, _limiter, now_ns + cost_ns, _token_ns, now_ns)
            on conflict do nothing
            returning b.full_ns, b.token_ns, b.at_ns, b.leased_ns, b.until_ns into full_ns, token_ns, at_ns, leased_ns, until_ns;
        else
            update pglimit.token_bucket b
            set full_ns = greatest(pglimit.token_bucket_full_ns(b, now_ns, _token_ns), now_ns) + cost_ns,
                token_ns = _token_ns, at_ns = greatest(b.at_ns, now_ns), room = null,
                leased_ns = nullif(pglimit.token_bucket_leased_ns(b, now_ns, _token_ns), 0)
            where b.key = _key and b.limiter = _limiter
                and b.at_ns <= now_ns + pglimit.step_ns() and pglimit.token_bucket_there(b, now_ns, _token_ns, _window_ns) >= granted
                and pglimit.clock_ns() >= now_ns - pglimit.step_ns() -- else it stepped back while this waited
            returning b.full_ns, b.token_ns, b.at_ns, b.leased_ns, b.until_ns into full_ns, token_ns, at_ns, leased_ns, until_ns;
        end if;
        if full_ns is not null then
            exit when try > 1 or pglimit.clock_ns() <= now_ns + 10000000;
            -- This call waited, for the row or for an insert that was rolled back. The grant is
            -- dated too early: tokens refilled during the wait would come on top of it. So undo
            -- it, and decide again.
            update pglimit.token_bucket b set full_ns = b.full_ns - cost_ns where b.key = _key and b.limiter = _limiter;
        end if;
    end loop;
end
$$;
