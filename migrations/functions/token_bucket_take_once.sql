-- Takes want tokens from one bucket, all or nothing, for a request with an ID, as token_bucket_take
-- does. If that ID was granted tokens of this bucket before, takes nothing, and returns what it was
-- granted then: compare that with the request, which may be another one.
--
-- A grant is kept for _ttl_ns, in the transaction of the take; a denial is not kept. If the clock has stepped
-- back since, it is kept for _ttl_ns from now on, once. (After a step forward an ID is free too early.)
--
-- It looks at the bucket, and then for the ID: it may have been granted the last token. If there are enough, it locks
-- the row and looks for the ID once more: of two calls with the same ID at the same time, the second one waits for
-- the row, and finds what the first one was granted, unless that was rolled back. A denial by a plain read locks
-- no row.
--
-- The other parameters: as for token_bucket_take. taken: as there, of that grant or this. window_ns: its window.
create or replace function pglimit.token_bucket_take_once(
    _key text, _limiter text, _id text, _token_ns bigint, _window_ns bigint, want bigint, _ttl_ns bigint, patience text,
    _calendar text default null, relaxed boolean default false, out taken bigint[], out window_ns bigint
)
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    kept record;
    now_ns bigint;
begin
    patience := pglimit.transaction_settings(patience, relaxed);
    if (pglimit.token_bucket_valid_one(_key, _limiter, _token_ns, _window_ns, want, want)
        and _id <> '' collate "C" and _ttl_ns between 1 and 86400000000000) is not true then
        raise exception 'token_bucket_take_once: id %, ttl_ns %, want %, token_ns %, window_ns %',
            _id, _ttl_ns, want, _token_ns, _window_ns using errcode = 'invalid_parameter_value';
    end if;
    if pglimit.writable() then
        lock table pglimit.token_bucket, pglimit.token_bucket_answers in row exclusive mode; -- see token_bucket_take
    end if;
    taken := pglimit.token_bucket_seen(_key, _limiter, _token_ns, _window_ns, want, _calendar);
    for look in 1 .. 2 loop
        select t.answer, t.until_ns, t.until_ns - t.ttl_ns as at_ns into kept
        from pglimit.token_bucket_answers t where t.key = _key and t.limiter = _limiter and t.id = _id;
        -- one date for the bucket and the ID
        now_ns := case when taken[2] = 0 then taken[1] else pglimit.clock_ns() end;
        if kept.at_ns > now_ns + pglimit.step_ns() and pglimit.writable() then
            update pglimit.token_bucket_answers t set until_ns = now_ns + t.ttl_ns
            where t.key = _key and t.limiter = _limiter and t.id = _id and t.until_ns - t.ttl_ns > now_ns + pglimit.step_ns();
        end if;
        if kept.until_ns > now_ns then
            taken := kept.answer[1:7];
            window_ns := kept.answer[8];
            return;
        end if;
        exit when look = 2 or taken[2] = 0;
        patience := pglimit.token_bucket_lock(_key, _limiter, _token_ns);
    end loop;
    window_ns := _window_ns;
    if taken[2] is null then
        taken := pglimit.token_bucket_take(_key, _limiter, _token_ns, _window_ns, want, want, null, _calendar);
    end if;
    if taken[2] > 0 then
        insert into pglimit.token_bucket_answers as t (key, limiter, id, answer, ttl_ns, until_ns)
        values (_key, _limiter, _id, taken || _window_ns, _ttl_ns, taken[1] + _ttl_ns)
        on conflict (key, limiter, id) do update -- it had expired, and was not swept yet
        set answer = excluded.answer, ttl_ns = excluded.ttl_ns, until_ns = excluded.until_ns;
    end if;
end
$$;
