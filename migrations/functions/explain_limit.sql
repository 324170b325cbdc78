-- Returns the rules for a key, in the order in which they are looked at, and the state of each: it holds, or is
-- overruled by one that does, disabled or expired; or it fails: it would hold, but cannot be read or kept (why says
-- what is wrong), and each request gets an error. For one with a limit that holds, also what is left in the bucket (as
-- pglimit.peek says, of the strategy token_bucket), or, of the kind places, how many are held. Counts nothing. If none
-- holds that is live or off, the limit in the service's configuration does.
create or replace function pglimit.explain_limit(limiter text, key text) returns table (
    state text, rule pglimit.limits, remaining bigint, retry_after interval, reset_after interval, held bigint, why text
)
language plpgsql set search_path = '' set row_security = off set jit = off as $$
declare
    held_kinds text[] := '{}';
begin
    for rule in
        select l.* from pglimit.limits_for(explain_limit.limiter, explain_limit.key) l
        order by array_position(array['off', 'live', 'observe', 'places'], l.kind),
            l.limiter nulls first, l.key, length(l.prefix) desc nulls last, l.temporary desc
    loop
        remaining := null; retry_after := null; reset_after := null; held := null; why := null;
        state := case
            when not rule.enabled then 'disabled'
            when rule.expires_at <= clock_timestamp() then 'expired'
            when rule.kind = any (held_kinds) or rule.kind = 'live' and 'off' = any (held_kinds) then 'overruled'
            else 'holds'
        end;
        if state = 'holds' then
            held_kinds := held_kinds || rule.kind;
            if rule.kind = 'places' then
                held := (
                    select coalesce(sum(h.weight), 0) from pglimit.holders h
                    where h.limiter = rule.limiter and h.key = explain_limit.key);
            elsif rule.limit_text is not null then
                begin
                    select p.remaining, p.retry_after, p.reset_after into remaining, retry_after, reset_after
                    from pglimit.peek(concat(rule.limiter, case rule.kind when 'observe' then ' (observed)' end),
                        explain_limit.key, rule.limit_text) p;
                exception when invalid_parameter_value then
                    state := 'fails';
                    why := regexp_replace(sqlerrm, '^pglimit: ', '');
                end;
            end if;
        end if;
        return next;
    end loop;
end
$$;
