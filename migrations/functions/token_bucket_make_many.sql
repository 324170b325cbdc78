-- Makes the rows of buckets that have none, in order, as those of full buckets from which grants
-- are taken at now_ns. Parameters as for token_bucket_take_many; grants: tokens, 0 or less: no row.
--
-- Returns done, and in it the buckets whose rows it made. Waits for a row that another call
-- is about to make.
create or replace function pglimit.token_bucket_make_many(
    now_ns bigint, done boolean[], _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[], grants bigint[]
) returns boolean[]
language plpgsql
set search_path = ''
set plan_cache_mode = force_generic_plan -- as in token_bucket_update_many
set enable_seqscan = off
as $$
declare
    made_keys text[];
    made_limiters text[];
    left_out constant bigint := cardinality(array_positions(done, false));
begin
    with made as (
        insert into pglimit.token_bucket as b (key, limiter, full_ns, token_ns, at_ns)
        select k.key, k.limiter, now_ns + k.ask * k.token_ns, k.token_ns, now_ns
        from pglimit.token_bucket_asked(done, _keys, _limiters, _tokens_ns, _windows_ns, grants) k
        where k.ask between 1 and k.window_ns / k.token_ns
            -- Else it would wait for who updates the row, which is not its turn. (Not "not exists":
            -- that is a join, which can be planned in another way.)
            and (select true from pglimit.token_bucket d where d.key = k.key and d.limiter = k.limiter) is null
        order by k.number
        on conflict do nothing
        returning b.key, b.limiter
    )
    select array_agg(m.key), array_agg(m.limiter) into made_keys, made_limiters from made m;
    if cardinality(made_keys) = left_out then
        return array_fill(true, array[cardinality(done)]);
    end if;
    done := array(
        select done[k.number] or (k.key, k.limiter) in (select * from unnest(made_keys, made_limiters))
        from pglimit.token_bucket_asked(null, _keys, _limiters, _tokens_ns, _windows_ns, grants) k
        order by k.number
    );
    if cardinality(array_positions(done, false)) + coalesce(cardinality(made_keys), 0) < left_out then
        raise exception 'token_bucket_take_many: a bucket is named twice' using errcode = 'invalid_parameter_value';
    end if;
    return done;
end
$$;
