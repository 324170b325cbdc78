-- Reads the rules that hold for a request now, for pglimit.allow and pglimit.peek without a limit. Either allowed is
-- not null: a rule grants or denies it; or live is the text of the limit that decides. beside: prices of a token and of
-- a burst, and beside_calendar, of the rule that is only observed (null: there is none that can be read). Locks
-- nothing. Fails with SQLSTATE 22023 if there is no limit, or the request is nonsense, and with 55000, naming the row,
-- if the rule that decides cannot be read or kept.
create or replace function pglimit.rule_of(
    _limiter text, _key text, _n bigint, out allowed boolean, out retry_after interval, out at timestamptz,
    out live text, out beside bigint[], out beside_calendar text
)
language plpgsql set search_path = '' set row_security = off
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
    rule record;
    prices bigint[];
    zone text;
    ends_at timestamptz; -- of the live rule
    why text; -- it cannot be read
begin
    perform pglimit.request_ns(_limiter, _key, '1000000000/s burst 6307200000000000000', _n, null, null, null); -- any n
    at := clock_timestamp();
    for rule in
        select distinct on (l.kind) l.*
        from pglimit.limits_for(_limiter, _key) l
        where l.enabled and (l.expires_at > rule_of.at) is not false and l.kind <> 'places'
        order by l.kind, l.key, length(l.prefix) desc nulls last, l.limiter nulls first, l.temporary desc -- off is last
    loop
        if rule.limit_text is not null then
            begin
                select array[r.token_ns, r.window_ns], r.calendar into prices, zone
                from pglimit.request_ns(_limiter, _key, rule.limit_text, 1, null, null, null) r;
                perform pglimit.window_end_ns(zone, pglimit.clock_ns()); -- fails for a time zone that has gone
            exception when invalid_parameter_value then
                continue when rule.action = 'observe';
                why := format('row %s of pglimit.limits: %s', rule.id, regexp_replace(sqlerrm, '^pglimit: ', ''));
            end;
        end if;
        if rule.action = 'observe' then
            beside := prices;
            beside_calendar := zone;
        else
            ends_at := rule.expires_at;
            live := rule.limit_text;
            allowed := case rule.action when 'enforce' then null else rule.action <> 'deny' end;
        end if;
    end loop;
    if allowed is null and why is not null then
        raise exception 'pglimit: %', why using errcode = 'object_not_in_prerequisite_state',
            hint = 'Nothing was taken. Correct the rule, or disable or delete it.';
    elsif allowed is null and live is null then
        raise exception 'pglimit: no limit is given, and pglimit.limits has none for limiter % and key %',
            to_json(_limiter), to_json(_key) using errcode = 'invalid_parameter_value',
            hint = format('Nothing was taken. Give a limit, such as ''100/1m burst 20'', or set one for all keys: '
                'select pglimit.set_limit(%L, ''100/1m burst 20'', note => ''default'')', _limiter);
    end if;
    retry_after := case when allowed then interval '0' else coalesce(ends_at - at, interval '1 hour') end;
end
$$;
