-- Lets nobody take tokens of a bucket before a time, whatever limit he has: for a service that protects somebody else's
-- API, which has said when it may be called again. For programs in any language:
--
--     select pglimit.pause('partner', 'api.example.com', now() + interval '30 seconds');
--
-- At that time there is one token, and the others come back behind it. Whoever may wait longer takes ahead. A pause that
-- lasts longer stays as it is, so this can only extend it; pglimit.reset ends it. limiter, key and limit_text: as for
-- pglimit.allow. Waits for any call that holds the row, and locks it until the transaction ends.
--
-- Returns for how long processes may still grant out of leases of the bucket; usually zero. A time that has passed does
-- nothing. Fails with SQLSTATE 22023 if an argument is nonsense, or there is no limit.
create or replace function pglimit.pause(
    limiter text, key text, until timestamptz, limit_text text default null
) returns interval
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := pause.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := pause.limiter;
    for_s constant numeric := extract(epoch from until) - pglimit.clock_ns() / 1000000000.0;
    asked record;
begin
    if (for_s < 3650 * 86400) is not true then
        raise exception 'pglimit: until is %: it must be a time in the next ten years', coalesce(until::text, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Nothing is paused.';
    end if;
    limit_text := coalesce(limit_text, (select r.live from pglimit.rule_of(limiter collate "C", key collate "C", 1) r), '1/s');
    asked := pglimit.request_ns(limiter, key, limit_text collate "C", 1, null, null, null);
    return case when for_s <= 0 then interval '0' else
        ceil(pglimit.token_bucket_pause(_key, _limiter, asked.token_ns, asked.window_ns, ceil(for_s * 1000000000)::bigint, asked.calendar)
            / 1000.0)::double precision * interval '1 microsecond' end;
end
$$;
