-- Returns true if these can be parameters of token_bucket_take_many. Without wants, each bucket has one request.
create or replace function pglimit.token_bucket_valid(
    keys text[], limiters text[], tokens_ns bigint[], windows_ns bigint[], asks bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[], calendars text[]
) returns boolean
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    n constant int := cardinality(keys);
    m constant int := coalesce(cardinality(wants), n);
begin
    return n > 0 and m > 0 and array_position(keys, null) is null and array_position(limiters, null) is null
        and cardinality(limiters) in (1, n) and cardinality(tokens_ns) in (1, n) and cardinality(windows_ns) in (1, n) and cardinality(asks) in (1, n)
        and (calendars is null or cardinality(calendars) in (1, n))
        and 0 < all (tokens_ns) and 0 < all (windows_ns) and pglimit.max_window_ns() >= all (windows_ns) and 0 <= all (asks)
        and (wants is null or 0 <= all (wants)) and (units is null or cardinality(units) = m and 1 <= all (units))
        and (aheads_ns is null or cardinality(aheads_ns) = m and 0 <= all (aheads_ns) and pglimit.max_window_ns() >= all (aheads_ns))
        and (members is null and m = n or cardinality(members) = m and 1 <= all (members) and n >= all (members))
        and (lasts is null or lasts[cardinality(lasts)] = m and 1 <= all (lasts)
            and lasts = array(select distinct l from unnest(lasts) l order by l)); -- they rise
end
$$;
