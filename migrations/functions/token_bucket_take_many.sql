-- Takes from many buckets in one call, for all by one clock: updates the rows that can grant,
-- makes those that are missing, looks why the rest was not granted, and is done.
--
-- _keys, and _limiters, _tokens_ns and _windows_ns as for token_bucket_take, with an element for
-- each bucket or one for all. Buckets are distinct and in the bytewise order of key and limiter.
-- asks, likewise: tokens, all or nothing. -1: several requests, or for as much as there is. They
-- are the elements lasts[i - 1] + 1 to lasts[i] of wants and units (null where no ask is -1), and
-- what they get is planned by a look, which another call may overtake.
-- relaxed, impatient: as for token_bucket_take.
--
-- Locks the rows that it updates, in order, then those that it makes, in order; a denial locks
-- nothing, unless the tokens went to another while this waited for the row. Two calls could only
-- wait for one another where a row is made between the two by a third: an impatient call gives
-- up then, after a millisecond.
--
-- SQLSTATE 40001, nothing taken: a bucket has changed meanwhile, or its row is ahead of the
-- clock. 55P03, nothing taken: impatient, and somebody held a row for 20 ms. Then ask for
-- each bucket by itself.
--
-- grants: tokens granted to each bucket at taken_ns (null: what was asked). numbers: of those
-- whose rows were there (null: all); behind it what has changed in them (leased: null if there
-- is none). The others have a new row: full at taken_ns + what was granted. denied: numbers of
-- those that were granted nothing at now_ns; behind it their rows, as token_bucket_look has them.
create or replace function pglimit.token_bucket_take_many(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], asks bigint[],
    lasts bigint[], wants bigint[], units bigint[], relaxed boolean, impatient boolean,
    out now_ns bigint, out taken_ns bigint, out grants bigint[], out numbers bigint[], out fulls bigint[], out ats bigint[], out leased bigint[], out untils bigint[],
    out denied bigint[], out denied_fulls bigint[], out denied_tokens bigint[], out denied_ats bigint[],
    out denied_leased bigint[], out denied_untils bigint[]
)
language plpgsql
set search_path = ''
as $$
declare
    n constant int := cardinality(_keys);
    planned constant boolean := -1 = any (asks);
    -- There even an update of nothing fails: what can be denied is, and the rest is an error.
    read_only constant boolean := pg_catalog.current_setting('transaction_read_only')::boolean;
    late_ns constant bigint := 25000000 + 50000 * n;
    plan bigint[] := asks;
    seen record;
    done boolean[];
begin
    if (n >= 0 and array_position(_limiters, null) is null and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n)
        and cardinality(_windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and -1 <= all (asks) and 0 < all (_tokens_ns) and 6400000000000000000 >= all (_windows_ns)
        and (not planned or cardinality(asks) = n and cardinality(lasts) = n)) is not true then
        raise exception 'token_bucket_take_many: an argument is null, too short, not positive or too large' using errcode = 'invalid_parameter_value';
    end if;
    if impatient then
        perform pg_catalog.set_config('lock_timeout', '20ms', true);
    end if;
    if relaxed then
        perform pg_catalog.set_config('synchronous_commit', 'off', true);
    end if;

    if planned and not read_only then
        -- As a write does: REINDEX would deadlock with a read that becomes a write.
        lock table pglimit.token_bucket in row exclusive mode;
    end if;
    now_ns := pglimit.clock_ns();
    if planned and not read_only then
        seen := pglimit.token_bucket_look(now_ns, array(select a >= 0 from unnest(asks) a),
            _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units);
        for i in 1 .. cardinality(seen.numbers) loop
            plan[seen.numbers[i]] := seen.grants[i];
        end loop;
        grants := plan;
    end if;
    if not read_only then
        select u.* into numbers, fulls, ats, leased, untils
        from pglimit.token_bucket_update_many(now_ns, now_ns + late_ns, _keys, _limiters, _tokens_ns, _windows_ns, plan) u;
    end if;

    if cardinality(numbers) = n then
        numbers := null;
    else
        numbers := coalesce(numbers, '{}');
        done := array_fill(false, array[n]);
        for i in 1 .. cardinality(numbers) loop
            done[numbers[i]] := true;
        end loop;
        if not read_only then
            if impatient and true = any (done) then
                -- This call holds rows already. One that was made meanwhile may be held by a call
                -- that waits for them: give up before that is a deadlock.
                perform pg_catalog.set_config('lock_timeout', '1ms', true);
            end if;
            done := pglimit.token_bucket_make_many(now_ns, done, _keys, _limiters, _tokens_ns, _windows_ns, plan);
        end if;
        if false = any (done) then
            seen := pglimit.token_bucket_look(now_ns, done, _keys, _limiters, _tokens_ns, _windows_ns, asks, lasts, wants, units);
            if 0 < any (seen.grants) or now_ns + pglimit.step_ns() < any (seen.ats) then
                if read_only then
                    raise exception 'pglimit: tokens cannot be taken in a read-only transaction' using errcode = 'read_only_sql_transaction';
                end if;
                raise exception 'pglimit: a bucket has changed meanwhile' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask for each bucket by itself.';
            end if;
            grants := array(select k.ask from pglimit.token_bucket_asked(null, _keys, _limiters, _tokens_ns, _windows_ns, plan) k order by k.number);
            for i in 1 .. cardinality(seen.numbers) loop
                grants[seen.numbers[i]] := 0;
            end loop;
            denied := seen.denied;
            denied_fulls := seen.fulls;
            denied_tokens := seen.tokens;
            denied_ats := seen.ats;
            denied_leased := seen.leased;
            denied_untils := seen.untils;
        end if;
    end if;

    taken_ns := pglimit.clock_ns();
    if taken_ns <= now_ns + 10000000 + 50000 * n or false = all (done) then -- more than it takes without waiting, on a busy machine too
        taken_ns := now_ns;
    elsif not planned then
        select array_agg(d.number), array_agg(d.full_ns), array_agg(d.at_ns), array_agg(coalesce(d.leased_ns, 0)), array_agg(coalesce(d.until_ns, 0))
        into numbers, fulls, ats, leased, untils
        from pglimit.token_bucket_date(_keys, _limiters, _tokens_ns, coalesce(grants, plan), taken_ns) d;
    elsif taken_ns <= now_ns + late_ns then
        taken_ns := now_ns; -- dated anew, what was planned would be less than there is
    else
        raise exception 'pglimit: what was planned is too old' using errcode = 'serialization_failure', hint = 'Nothing was taken. Ask for each bucket by itself.';
    end if;
end
$$;
