-- Planted: it decides by what it has read, and writes that. What others wrote meanwhile is lost.
create or replace function pglimit.token_bucket_take(
    _key text, _limiter text, _token_ns bigint, _window_ns bigint, want bigint, unit bigint, patience text,
    _calendar text default null, relaxed boolean default false, ahead_ns bigint default 0
) returns bigint[]
language plpgsql set search_path = '' as $$
declare
    now_ns constant bigint := pglimit.clock_ns();
    owed_ns bigint;
begin
    select t.full_ns into owed_ns from pglimit.token_bucket t where t.key = _key and t.limiter = _limiter;
    owed_ns := greatest(now_ns, owed_ns) + want * _token_ns;
    if owed_ns > now_ns + _window_ns then
        return array[now_ns, 0, owed_ns, _token_ns, now_ns, 0, 0];
    end if;
    insert into pglimit.token_bucket (key, limiter, full_ns, token_ns, at_ns)
    values (_key, _limiter, owed_ns, _token_ns, now_ns)
    on conflict (key, limiter) do update set full_ns = excluded.full_ns, at_ns = excluded.at_ns;
    return array[now_ns, want, owed_ns, _token_ns, now_ns, 0, 0];
end
$$
