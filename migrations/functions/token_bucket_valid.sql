-- Returns true if these can be parameters of token_bucket_decide. Without wants, each bucket has one request.
create or replace function pglimit.token_bucket_valid(
    _keys text[], _limiters text[], _tokens_ns bigint[], _windows_ns bigint[],
    members bigint[], wants bigint[], units bigint[], aheads_ns bigint[], lasts bigint[]
) returns boolean
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    n constant int := cardinality(_keys);
    m constant int := coalesce(cardinality(wants), n);
begin
    return n > 0 and m > 0 and cardinality(_limiters) in (1, n) and cardinality(_tokens_ns) in (1, n) and cardinality(_windows_ns) in (1, n)
        and array_position(_limiters, null) is null and 0 < all (_tokens_ns) and 0 < all (_windows_ns) and pglimit.max_window_ns() >= all (_windows_ns)
        and (wants is null or 0 <= all (wants)) and (units is null or cardinality(units) = m and 1 <= all (units))
        and (aheads_ns is null or cardinality(aheads_ns) = m and 0 <= all (aheads_ns) and pglimit.max_window_ns() >= all (aheads_ns))
        and (members is null and m = n or cardinality(members) = m and 1 <= all (members) and n >= all (members))
        and (lasts is null or lasts[cardinality(lasts)] = m and 0 <= all (lasts) and m >= all (lasts));
end
$$;
