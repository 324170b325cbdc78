-- Returns how many tokens a bucket has by a limit, as pglimit.peek says. b: as for token_bucket_read. burst and token_ns
-- are those of limit_numbers: without token_ns, nothing comes back before the end of the window, whenever that is.
create or replace function pglimit.tokens_left(b bigint[], now_ns bigint, burst bigint, token_ns bigint) returns bigint
language plpgsql immutable parallel safe set search_path = '' as $$
declare
    is_window constant boolean := token_ns is null;
    price constant bigint := coalesce(token_ns, 1);
    now constant bigint[] := pglimit.token_bucket_read(b, now_ns, price, case when is_window then now_ns + 1 end);
begin
    return greatest(0, pglimit.tokens_there(now[1], now[case when is_window then 5 else 3 end], price,
        greatest(0, burst * price - now[4])));
end
$$;
