-- Takes want tokens from one bucket, all or nothing, for a request with an ID, as token_bucket_take
-- does. If that ID was granted tokens of this bucket before, takes nothing, and returns what it was
-- granted then: compare that with the request, which may be another one.
--
-- A grant is kept for _ttl_ns, in the transaction of the take; a denial is not kept. If the clock has stepped
-- back since, it is kept for _ttl_ns from now on, once. (After a step forward an ID is free too early.)
--
-- Two calls with the same ID at the same time: the second one waits for the bucket's row, which the first one has
-- locked or inserted, and takes. Then it finds what the first one was granted, and undoes its own, unless that was rolled back.
--
-- The other parameters: as for token_bucket_take. Returns the seven numbers of token_bucket_take, of that grant or
-- this, and its window.
create or replace function pglimit.token_bucket_take_once(
    _key text, _limiter text, _id text, _token_ns bigint, _window_ns bigint, want bigint, _ttl_ns bigint, patience text, _calendar text default null,
    relaxed boolean default false
) returns bigint[]
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    taken bigint[];
    kept record;
    now_ns bigint;
begin
    if (_id <> '' collate "C" and _ttl_ns between 1 and 86400000000000) is not true then
        raise exception 'token_bucket_take_once: id %, ttl_ns %', _id, _ttl_ns using errcode = 'invalid_parameter_value';
    end if;
    if pg_catalog.current_setting('transaction_read_only') = 'off' then
        lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode; -- before the read: see token_bucket_take
    end if;
    for look in 1 .. 2 loop
        select t.answer, t.until_ns, t.until_ns - t.ttl_ns as at_ns into kept
        from pglimit.token_bucket_answers t where t.key = _key and t.limiter = _limiter and t.id = _id;
        now_ns := coalesce(taken[1], pglimit.clock_ns());
        if kept.at_ns > now_ns + pglimit.step_ns() then
            update pglimit.token_bucket_answers t set until_ns = now_ns + t.ttl_ns
            where t.key = _key and t.limiter = _limiter and t.id = _id and t.until_ns - t.ttl_ns > now_ns + pglimit.step_ns();
        end if;
        if kept.until_ns > now_ns then
            if taken[2] > 0 then -- another call was faster: this one has waited for the row that it holds now
                update pglimit.token_bucket t set full_ns = t.full_ns - want * _token_ns where t.key = _key and t.limiter = _limiter;
            end if;
            return kept.answer;
        end if;
        exit when look = 2;
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, patience, null, _calendar, relaxed) || _window_ns;
    end loop;
    if taken[2] > 0 then -- the bucket's row is locked: no other call with this ID can be granted tokens now
        insert into pglimit.token_bucket_answers as t (key, limiter, id, answer, ttl_ns, until_ns)
        values (_key, _limiter, _id, taken, _ttl_ns, taken[1] + _ttl_ns)
        on conflict (key, limiter, id) do update -- it had expired, and was not swept yet
        set answer = excluded.answer, ttl_ns = excluded.ttl_ns, until_ns = excluded.until_ns;
    end if;
    return taken;
end
$$;
