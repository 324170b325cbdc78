-- Returns the burst of a limit in the table pglimit.limits, and the price of a token in nanoseconds: null for a limit
-- per calendar window. For views: it never fails, as request_ns does, but returns nulls for what cannot be a limit.
create or replace function pglimit.limit_numbers(limit_text text, out burst bigint, out token_ns bigint)
language plpgsql immutable strict parallel safe set search_path = '' as $$
declare
    words constant text[] := array_remove(string_to_array(limit_text, ' '), '');
    tokens constant bigint := nullif(pglimit.whole_number(split_part(words[1], '/', 1)), 0);
    period constant text := split_part(words[1], '/', 2);
    is_window constant boolean := coalesce(words[2] <> 'burst', false) or period ~ '^1?(month|year)$';
begin
    burst := case when 'burst' = any (words) then pglimit.whole_number(words[array_position(words, 'burst') + 1]) else tokens end;
    token_ns := case when not is_window then (pglimit.period_ns_of(period) - 1) / tokens + 1 end;
    if tokens is null or token_ns is null and not is_window or burst::numeric * coalesce(token_ns, 1) > pglimit.max_window_ns() then
        burst := null;
        token_ns := null;
    end if;
end
$$;
