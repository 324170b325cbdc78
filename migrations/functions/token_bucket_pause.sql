-- Lets nobody take tokens of a bucket for as long as for_ns (ten years at most) from now on, whatever limit he has:
-- see token_bucket_paused. What was used stays used. A pause that lasts longer stays as it is; pglimit.reset ends it.
-- What was taken before and is due in the pause stays taken: who waits for it looks whether there is a pause when it is
-- due, gives it back, and takes again.
--
-- Waits for any call that holds the row, locks it (inserts it if it is missing), and only then reads the clock.
-- relaxed: as for token_bucket_take. Returns for how long, in nanoseconds, others may still grant out of their leases
-- (0: there are none).
create or replace function pglimit.token_bucket_pause(
    _key text, _limiter text, for_ns bigint, relaxed boolean default false
) returns bigint
language plpgsql set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    seen bigint[]; -- the row, as of token_bucket_rows
    b bigint[];
    now_ns bigint;
    said text;
begin
    if (_key is not null and _limiter is not null and for_ns between 1 and 3650 * 86400000000000) is not true then
        raise exception 'token_bucket_pause: for_ns %', for_ns using errcode = 'invalid_parameter_value';
    end if;
    said := pglimit.transaction_settings(null, relaxed);
    said := pglimit.token_bucket_lock(_key, _limiter, 1);
    seen := array(select unnest(pglimit.token_bucket_rows(array[_key], array[_limiter])));
    now_ns := pglimit.clock_ns();
    for_ns := greatest(for_ns, seen[6] - greatest(seen[3], now_ns));
    -- As of now, at its own price, or of its own window.
    b := pglimit.token_bucket_read(seen, now_ns, seen[2], case when seen[4] = 0 and seen[5] > 0 then seen[5] end);
    update pglimit.token_bucket t
    set full_ns = b[1], at_ns = b[3], leased_ns = nullif(b[4], 0), until_ns = nullif(b[5], 0), padding = null,
        paused_ns = b[3] + for_ns
    where t.key = _key and t.limiter = _limiter;
    return case when seen[4] > 0 then greatest(0, seen[5] - greatest(seen[3], now_ns)) else 0 end;
end
$$;
