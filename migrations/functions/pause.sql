-- Lets nobody take tokens of a bucket before a time, whatever limit he has: for a service that calls somebody else's
-- API, which has said when it may be called again. For programs in any language:
--
--     select pglimit.pause('partner', 'api.example.com', now() + interval '30 seconds');
--
-- Then there is one token, and the others come back behind it. Whoever may wait longer takes ahead. A pause that lasts
-- longer stays as it is, so this can only extend it; pglimit.reset ends it. limiter and key: as for pglimit.allow. Waits
-- for any call that holds the row, by which the pause ends later, and locks it until the transaction ends.
--
-- Returns for how long processes may still grant out of leases of the bucket; usually zero. A time that has passed does
-- nothing. Fails with SQLSTATE 22023 if an argument is nonsense.
create or replace function pglimit.pause(limiter text, key text, until timestamptz) returns interval
language plpgsql set search_path = '' as $$
declare
    _key constant text collate "default" := pause.key; -- whatever the caller's collation is
    _limiter constant text collate "default" := pause.limiter;
    for_ns constant numeric := extract(epoch from until) * 1000000000 - pglimit.clock_ns();
begin
    perform pglimit.request_ns(limiter, key, null, 1, 1, '1 second', null); -- checks the names
    if (for_ns < 3650 * 86400000000000) is not true then
        raise exception 'pglimit: until is %: it must be a time in the next ten years', coalesce(until::text, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Nothing is paused.';
    end if;
    return case when for_ns < 1 then interval '0' else
        ceil(pglimit.token_bucket_pause(_key, _limiter, for_ns::bigint) / 1000.0)::double precision * interval '1 microsecond' end;
end
$$;
