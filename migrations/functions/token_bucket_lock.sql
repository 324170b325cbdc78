-- Locks the row of a bucket, which is inserted, full, if it is missing. Returns null.
create or replace function pglimit.token_bucket_lock(_key text, _limiter text, _token_ns bigint) returns text
language plpgsql set search_path = '' as $$
declare
    now_ns constant bigint := pglimit.clock_ns();
begin
    insert into pglimit.token_bucket as t (key, limiter, full_ns, token_ns, at_ns)
    values (_key, _limiter, now_ns, _token_ns, now_ns)
    on conflict (key, limiter) do update set at_ns = t.at_ns where false;
    return null;
end
$$;
